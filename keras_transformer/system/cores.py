"""How many cores there are."""

import math
import os
from pathlib import Path

# Where Linux says how much time a container has, in microseconds, and of how
# many: in version 2 of its control groups, and in version 1.
QUOTAS = (
    ("/sys/fs/cgroup/cpu.max",),
    (
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
    ),
)


def num_cores() -> int:
    """How many cores this process may use, within the limit of its container.

    Half a core counts as one.
    """
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min(cores, _quota())


def _quota():
    """How many cores' time the container has, rounded up; infinity for all."""
    for files in QUOTAS:
        try:
            words = [Path(file).read_text("utf-8") for file in files]
            quota, period = map(int, " ".join(words).split())
        except (OSError, ValueError):  # the other version, or "max"
            continue
        if quota > 0:  # -1 is no limit
            return math.ceil(quota / period)
    return math.inf
