"""
Battery: ten ways in which commands keep their state, each through kills of the command, the instance and a notice.

    make battery NAME=commands

Each program checks what it finds at its start, and says BROKEN if that does not hold together. The agents are real.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spotrun.instance import EndedBy
from spotrun.run import events as ev
from tests.support.agent_bench import AgentRun, Node

os.environ["SPOTRUN_REST_FLOOR_S"] = "0.2"
WITHIN_S = 60.0


class Use(NamedTuple):
    """`files` of the work folder; `counts_to` is what it says with `at N` when it is done."""

    name: str
    run: str
    files: dict[str, str]
    state: tuple[str, ...] = ("out/",)


IN_PLACE = r"""
use strict; use Fcntl; use Time::HiRes 'sleep';
# A simulator: 64 blocks of one number each, written over where they are.
mkdir 'out'; my $n = 0; my $stop = 0; $SIG{TERM} = sub { $stop = 1 };
if (open my $f, '<', 'out/field.bin') {
    local $/ = \1024; my @seen = map { unpack 'N', $_ } <$f>; close $f;
    print "BROKEN: @seen[0, -1]\n" and exit 3 if @seen != 64 or grep { $_ != $seen[0] } @seen;
    $n = $seen[0];
} else { open my $f, '>', 'out/field.bin'; print $f pack('N', 0) . ("\0" x 1020) for 1 .. 64; close $f }
$| = 1; print "begins at $n\n";
while ($n < 40) {
    sleep 0.5; $n++;
    open my $f, '+<', 'out/field.bin';
    for my $block (0 .. 63) { seek $f, 1024 * $block, 0; print $f pack('N', $n); $f->flush; sleep 0.002 }
    close $f; print "at $n\n"; exit 0 if $stop;
}
print "DONE\n";
"""
RENAMES = r"""
mkdir -p out
trap 'stop=1' TERM
n=$(cat out/a 2>/dev/null || echo 0)
[ "$n" = "$(cat out/b 2>/dev/null || echo 0)" ] || { echo "BROKEN: $n"; exit 3; }
echo "begins at $n"
while [ "$n" -lt 40 ]; do
    sleep 0.5; n=$((n + 1))
    for name in a b; do echo $n > out/.$name.tmp; mv out/.$name.tmp out/$name; sleep 0.05; done
    echo "at $n"; [ -z "$stop" ] || exit 143
done
echo DONE
"""
MAPPED = r"""
import mmap, os, signal, struct, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
os.makedirs("out", exist_ok=True)
for name in ("data.mdb", "lock.mdb"):
    if not os.path.exists(f"out/{name}"):
        open(f"out/{name}", "wb").write(bytes(1 << 16))
def pages():
    with open("out/data.mdb", "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        yield pages
        pages.flush()
for page in pages():
    seen = {struct.unpack_from("I", page, at)[0] for at in range(0, len(page), 4096)}
lock = struct.unpack("I", open("out/lock.mdb", "rb").read(4))[0]
if seen != {lock}:
    print("BROKEN", seen, lock); sys.exit(3)
n = lock
print("begins at", n, flush=True)
while n < 40:
    time.sleep(0.5); n += 1
    for page in pages():
        for at in range(0, len(page), 4096):
            struct.pack_into("I", page, at, n); time.sleep(0.002)
    with open("out/lock.mdb", "r+b") as file:
        file.write(struct.pack("I", n))
    print("at", n, flush=True)
    if stop: sys.exit(0)
print("DONE")
"""
LOCKED = r"""
mkdir -p out
if [ -f out/run.pid ] && kill -0 "$(cat out/run.pid)" 2>/dev/null; then echo "BROKEN: runs already"; exit 3; fi
echo $$ > out/run.pid
trap 'rm -f out/run.pid; exit 0' TERM
n=$(cat out/n 2>/dev/null || echo 0); echo "begins at $n"
while [ "$n" -lt 40 ]; do sleep 0.4; n=$((n + 1)); echo $n > out/n.tmp; mv out/n.tmp out/n; echo "at $n"; done
rm out/run.pid; echo DONE
"""
APPENDS = r"""
import hashlib, os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
os.makedirs("out", exist_ok=True)
SIZE = 1 << 20
def chunk(n): return hashlib.blake2b(str(n).encode()).digest() * (SIZE // 64)
path = "out/trajectory.bin"
n = os.path.getsize(path) // SIZE if os.path.exists(path) else 0
if os.path.exists(path):
    data = open(path, "rb").read()
    if len(data) % SIZE or any(data[at * SIZE:(at + 1) * SIZE] != chunk(at) for at in range(n)):
        print("BROKEN", len(data)); sys.exit(3)
print("begins at", n, flush=True)
while n < 40:
    time.sleep(0.5)
    with open(path, "ab") as file:
        for at in range(0, SIZE, SIZE // 8):
            file.write(chunk(n)[at:at + SIZE // 8]); file.flush(); time.sleep(0.01)
    n += 1; print("at", n, flush=True)
    if stop: sys.exit(0)
print("DONE")
"""
DAEMON = r"""
mkdir -p out
cat > writer.sh <<'END'
n=$(cat out/first 2>/dev/null || echo 0)
while :; do
    sleep 0.6; n=$((n + 1))
    for name in first second; do echo $n > out/$name.tmp; mv out/$name.tmp out/$name; sleep 0.05; done
done
END
[ "$(cat out/first 2>/dev/null)" = "$(cat out/second 2>/dev/null)" ] || { echo BROKEN; exit 3; }
echo "begins at $(cat out/first 2>/dev/null || echo 0)"
setsid bash writer.sh < /dev/null > /dev/null 2>&1 &
while [ "$(cat out/first 2>/dev/null || echo 0)" -lt 40 ]; do sleep 0.2; done
echo DONE
"""
ONE_FILE = r"""
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
n = 0
if os.path.exists("model.ckpt"):
    words = open("model.ckpt").read().split()
    if len(set(words)) != 1 or len(words) != 5000: print("BROKEN", len(words)); sys.exit(3)
    n = int(words[0])
print("begins at", n, flush=True)
while n < 40:
    time.sleep(0.5); n += 1
    with open("model.ckpt", "w") as file:
        for _ in range(5000): file.write(f"{n}\n")
        file.flush(); time.sleep(0.05)
    print("at", n, flush=True)
    if stop: sys.exit(0)
print("DONE")
"""
LINKED = r"""
[ -e out ] || { mkdir -p real; ln -s real out; }
[ -L out ] || { echo "BROKEN: no link"; exit 3; }
trap 'exit 0' TERM
n=$(cat out/n 2>/dev/null || echo 0); echo "begins at $n"
while [ "$n" -lt 40 ]; do
    sleep 0.6; n=$((n + 1)); mkdir -p out/step-$n; echo $n > out/step-$n/n
    ln -sfn step-$n out/.newest; mv -T out/.newest out/newest; echo $n > out/n.tmp; mv out/n.tmp out/n
    [ "$(cat out/newest/n)" = "$n" ] || { echo BROKEN; exit 3; }
    rm -rf out/step-$((n - 2)); echo "at $n"
done
echo DONE
"""
DELETES = r"""
mkdir -p out/deep
trap 'exit 0' TERM
n=$(cat out/deep/n 2>/dev/null || echo 0); echo "begins at $n"
while [ "$n" -lt 40 ]; do
    sleep 0.4; n=$((n + 1)); echo $n > out/deep/n.tmp; mv out/deep/n.tmp out/deep/n; echo "at $n"
done
rm -rf out; echo DONE
"""
PRIVATE = r"""
umask 077
mkdir -p out/key
[ "$(stat -c %a out)$(stat -c %a out/key)" = 700700 ] || { echo "BROKEN: $(stat -c %a out out/key)"; exit 3; }
[ ! -e out/key/n ] || [ "$(stat -c %a out/key/n)" = 600 ] || { echo BROKEN; exit 3; }
trap 'exit 0' TERM
n=$(cat out/key/n 2>/dev/null || echo 0); echo "begins at $n"
while [ "$n" -lt 40 ]; do
    sleep 0.4; n=$((n + 1)); echo $n > out/key/n.tmp; mv out/key/n.tmp out/key/n; echo "at $n"
done
echo DONE
"""
PYTHON = f"exec {shlex.quote(sys.executable)} -S"
USES = (
    Use("a simulator writes its field in place", "perl sim.pl", {"sim.pl": IN_PLACE}),
    Use("temporary names and renames", "bash run.sh", {"run.sh": RENAMES}),
    Use("a mapped file and its lock", f"{PYTHON} db.py", {"db.py": MAPPED}),
    Use("a lock file with a process id", "bash run.sh", {"run.sh": LOCKED}, ("out/", "!out/*.pid")),
    Use("a file that grows by appends", f"{PYTHON} md.py", {"md.py": APPENDS}),
    Use("a daemon that writes", "bash run.sh", {"run.sh": DAEMON}),
    Use("a single file", f"{PYTHON} one.py | cat", {"one.py": ONE_FILE}, ("model.ckpt",)),
    Use("a state folder that is a link", "bash run.sh", {"run.sh": LINKED}, ("out",)),
    Use("state that is deleted at the end", "bash run.sh", {"run.sh": DELETES}),
    Use("a umask of 077", "bash run.sh", {"run.sh": PRIVATE}),
)


def until(holds: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    until_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until_s:
            raise AssertionError("not in time")
        time.sleep(0.05)


def commits(run: AgentRun) -> int:
    return len(run.seen(ev.CheckpointCommitted))


def taken(run: AgentRun, node: Node) -> None:
    node.close()
    gone: dict[str, Any] = {"billed_from": None, "ended_by": EndedBy.CLOUD, "prices": (), "evidence": "battery"}
    run.write(ev.InstanceGone(launch=node.launch, instance_id=node.instance_id, ended_at=run.clock.now(), **gone))


def played(use: Use, folder: Path) -> str:
    """A loss without a word, a kill of the command, a notice, and to its end. What went wrong, or nothing."""
    train = {"run": use.run, "state": list(use.state)}
    run = AgentRun(folder, train=train, files=use.files, outputs={"files": []}, retry={"max_restarts": 4})
    try:
        node = run.launch()
        until(lambda: commits(run) > 1)
        taken(run, node)
        node, made = run.launch(), commits(run)
        until(lambda: commits(run) > made + 1)
        os.kill(node.trainer_pid(), signal.SIGKILL)
        until(lambda: commits(run) > made + 2)
        node.notice(120)
        node.powers_off()
        last = run.launch()
        last.powers_off()
        logs = "".join(run.log(each) for each in run.nodes)
        begins = [line for line in logs.splitlines() if "begins at" in line]
        said = [line for line in logs.splitlines() if "BROKEN" in line or "cannot" in line]
        done = bool(run.seen(ev.RunCompleted)) and "DONE" in logs
        print(f"  {', '.join(begins)}; {commits(run)} checkpoints")
        if run.seen(ev.StateNotCarried):
            said.append(str(run.seen(ev.StateNotCarried)[0].places[0].what))
        return "; ".join(said) or ("" if done else f"not done: {logs[-500:]}")
    except AssertionError as error:
        return f"{error}: {''.join(run.log(each) for each in run.nodes)[-800:]}"
    finally:
        run.close()


def main(*names: str) -> int:
    wrong = 0
    for use in USES:
        if names and not any(name in use.name for name in names):
            continue
        print(use.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            problem = played(use, Path(folder))
        wrong += bool(problem)
        print(f"  WRONG: {problem}" if problem else "  right", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
