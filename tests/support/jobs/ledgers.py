"""
Moves amounts between two tables of an SQLite database, which is open only while it does. Their sum never changes, but
within a transaction.

    ledgers.py FOLDER [RESTS_S]

It rests for up to so long between two transactions.
"""

import os
import random
import sqlite3
import sys
import time

rests_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.4
path = os.path.join(sys.argv[1], "bank.db")


def connected() -> sqlite3.Connection:
    bank = sqlite3.connect(path, timeout=5, isolation_level=None)
    bank.execute("pragma synchronous = off")  # processes are killed here, and no machine
    return bank


with connected() as bank:
    bank.execute("pragma journal_mode = delete")
    for table in ("one", "two"):
        bank.execute(f"create table if not exists {table} (id integer primary key, amount integer, text text)")
        if not bank.execute(f"select count(*) from {table}").fetchone()[0]:
            bank.executemany(f"insert into {table} (amount, text) values (?, ?)", [(50, "x" * 500)] * 100)
    sound = bank.execute("pragma integrity_check").fetchone()[0]
    total = sum(bank.execute(f"select sum(amount) from {table}").fetchone()[0] for table in ("one", "two"))
    if sound != "ok" or total != 10_000:
        print(f"MIXTURE: {sound}, {total}", flush=True)
        sys.exit(3)
bank.close()
print("begins", flush=True)
while True:
    bank = connected()
    bank.execute("begin immediate")
    for _ in range(20):
        amount, where = random.randrange(9), random.randrange(1, 101)
        bank.execute("update one set amount = amount - ?, text = ? where id = ?", (amount, "y" * 900, where))
        time.sleep(0.002)
        bank.execute("update two set amount = amount + ?, text = ? where id = ?", (amount, "z" * 900, where))
    bank.execute("commit")
    bank.close()
    print("moved", flush=True)
    time.sleep(random.random() * rests_s)
