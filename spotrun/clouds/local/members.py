"""
Launches all members of a gang on the local cloud, or none.

The launcher first writes the records of all members, then starts their supervisors one by one. No supervisor boots its
member yet. When all supervisors have started, the launcher writes a file with the word `all` next to the first member's
record, and the members boot. If the supervisors take too long to start, another process writes `none` instead, and the
whole launch fails. Only the word that is written first counts.
"""

from __future__ import annotations

import time

from spotrun.clouds.local.records import Record, RecordFolder, instance_id_of

MEMBERS_NET, CUT_OFF_NET = "127.77", "127.78"
"""
The first two numbers of the members' IPv4 addresses. A member has the address 127.77.L.M, where L is the launch's
number and M the member's index. If the market's script says that the other members can no longer reach a member, that
member moves to an address in 127.78.

All these are loopback addresses of this machine, and each address has its own ports. So two members can use the same
unprivileged port.
"""
ALL, NONE = "all", "none"
GIVEN_UP_AFTER_S = 60.0
"""
Maximum seconds of system time from accepting a launch until all members have supervisors. After that the launch is
given up, because the launcher has probably died, and no other process starts the missing supervisors.
"""


def first_of(folder: RecordFolder, record: Record) -> RecordFolder:
    """Return the record folder of the launch's first member, which stores the launch's outcome."""
    return RecordFolder(folder.path.parent / instance_id_of(record.instance.token))


def has_all(folder: RecordFolder, record: Record) -> bool:
    """Return True if all members of the record's launch have started. A single instance always counts as started."""
    return record.count is None or first_of(folder, record).word() == ALL


def given_up(folder: RecordFolder, record: Record) -> bool:
    """Return True if the launch was given up. If so, none of its members will run."""
    if record.count is None:
        return False
    first = first_of(folder, record)
    if time.time() - record.accepted_s > GIVEN_UP_AFTER_S:
        return first.agree(NONE) == NONE
    return first.word() == NONE
