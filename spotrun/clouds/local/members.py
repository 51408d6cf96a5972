"""
Launching members of a gang on the local cloud: all or none.

The members are accepted together, and their supervisors are started one by one. A supervisor boots only once all are
there. Then one word is written beside the record of the first: `all`. If it takes too long, somebody else writes `none`
there, and nothing of the launch is left. The word that is written first counts, for all who look.
"""

from __future__ import annotations

import time

from spotrun.clouds.local.records import Record, RecordFolder, instance_id_of

MEMBERS_NET, CUT_OFF_NET = "127.77", "127.78"
"""
Members have addresses in the first, 127.77.L.M: on the loopback net each has all ports, and nobody needs a right for
it. Who is cut off from the others has one in the second.
"""
ALL, NONE = "all", "none"
GIVEN_UP_AFTER_S = 60.0
"""How long the members may take until all have supervisors, in system time. If their launcher has died, nobody asks."""


def first_of(folder: RecordFolder, record: Record) -> RecordFolder:
    """Where it is written what became of the launch."""
    return RecordFolder(folder.path.parent / instance_id_of(record.instance.token))


def has_all(folder: RecordFolder, record: Record) -> bool:
    """Whether all members of its launch are there. An instance on its own has no others."""
    return record.count is None or first_of(folder, record).word() == ALL


def given_up(folder: RecordFolder, record: Record) -> bool:
    """Whether the launch is over, and none of its members will run."""
    if record.count is None:
        return False
    first = first_of(folder, record)
    if time.time() - record.accepted_s > GIVEN_UP_AFTER_S:
        return first.agree(NONE) == NONE
    return first.word() == NONE
