-- In the shop's database only. The copy has no foreign key: its two tables are loaded one after the other.
ALTER TABLE order_items ADD FOREIGN KEY (order_id) REFERENCES orders;

CREATE PUBLICATION orders FOR TABLE orders, order_items;
