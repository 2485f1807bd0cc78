-- In both databases: the tables, and what is asked of them.
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer text NOT NULL, state text NOT NULL, entered_at timestamptz NOT NULL
);

CREATE TABLE order_items (
    order_id bigint, item int, product text NOT NULL, quantity int NOT NULL, price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, item)
);

CREATE VIEW revenue AS
    SELECT customer, count(DISTINCT id) AS orders, sum(quantity * price) AS revenue
    FROM orders JOIN order_items ON order_id = id
    WHERE state = 'billed'
    GROUP BY customer;
