"""
Counts, and keeps its count in two files that belong together. It looks at them first, and says when they do not.

    pairs.py FOLDER UNTIL [rests=S] [gap=S] [term=save|ignore|crash|slow] [fail=FILE]

Between the two writes passes a `gap`, and after them it `rests`: at least S seconds, and longer on a busy machine,
where an agent needs more time to see that nothing changes. Where FILE is, it fails when it has counted once.
"""

import os
import signal
import sys
import time

folder, until = sys.argv[1], int(sys.argv[2])
options = dict(each.split("=", 1) for each in sys.argv[3:])
rests, gap, term = float(options.get("rests", 0.6)), float(options.get("gap", 0.02)), options.get("term", "save")
asked = False
NAP_S = 0.02


def text_of(number: int) -> str:
    return f"{number}\n" * 2000


def write(name: str, number: int) -> None:
    with open(os.path.join(folder, name + ".tmp"), "w") as file:
        file.write(text_of(number))
    os.replace(os.path.join(folder, name + ".tmp"), os.path.join(folder, name))


def save(number: int) -> None:
    write("first", number)
    time.sleep(gap)
    write("second", number)


def read() -> int:
    found = []
    for name in ("first", "second"):
        try:
            with open(os.path.join(folder, name)) as file:
                found.append(file.read())
        except FileNotFoundError:
            found.append(text_of(0))
    number = int(found[0].split("\n", 1)[0] or -1)
    if found != [text_of(number)] * 2:
        print(f"MIXTURE of {[text[:9] for text in found]}", flush=True)
        sys.exit(3)
    return number


def on_term(*_: object) -> None:
    global asked
    print("SIGTERM", flush=True)
    asked = True


if term != "none":
    signal.signal(signal.SIGTERM, on_term)
os.makedirs(folder, exist_ok=True)
number = read()
print(f"begins at {number}", flush=True)
while number < until:
    number += 1
    save(number)
    print(f"at {number}", flush=True)
    if os.path.exists(options.get("fail", "")):
        sys.exit(1)
    naps = rests / NAP_S
    while naps > 0 or (asked and term == "ignore"):
        time.sleep(NAP_S)
        naps -= 1
        if not asked:
            continue
        if term == "save":
            save(number + 1000)
            sys.exit(0)
        if term == "crash":
            write("first", number + 1000)
            raise RuntimeError("in answer to SIGTERM")
        if term == "slow":
            time.sleep(2)
            save(number + 1000)
            sys.exit(143)
print("done", flush=True)
