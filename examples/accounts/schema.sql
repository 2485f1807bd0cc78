-- Every change of every account. No unique key: an entry that was written twice would be here twice.
CREATE TABLE entries (event bigint NOT NULL, account text NOT NULL, cents bigint NOT NULL);

-- Increments: each batch adds to them, in the transaction that appends its entries.
CREATE TABLE counters (account text PRIMARY KEY, entries bigint NOT NULL, cents bigint NOT NULL);

CREATE FUNCTION count_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO counters
        SELECT account, count(*), sum(cents) FROM new_entries GROUP BY account ORDER BY account
    ON CONFLICT (account) DO UPDATE
        SET entries = counters.entries + excluded.entries, cents = counters.cents + excluded.cents;
    RETURN NULL;
END $$;

CREATE TRIGGER count_entries AFTER INSERT ON entries REFERENCING NEW TABLE AS new_entries
    FOR EACH STATEMENT EXECUTE FUNCTION count_entries();

-- Snapshots: each batch replaces the balances that it has changed. Spark has the state.
CREATE TABLE balances (account text PRIMARY KEY, cents bigint NOT NULL);
