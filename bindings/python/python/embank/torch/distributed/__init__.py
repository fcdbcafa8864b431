"""Tables over the ranks of `torch.distributed`.

`ShardedBank` opens a bank on each rank and makes tables whose rows are spread over them. The
modules of `embank.torch` work over these tables as over others. docs/distributed.md describes how a
training program changes.
"""

from .bank import ShardedBank
from .errors import PeerLost, ProtocolMismatch
from .lease import ShardedLease
from .fleet import RecoveredSet, SetName, set_of
from .table import ShardedTable

__all__ = [
    "PeerLost",
    "ProtocolMismatch",
    "RecoveredSet",
    "SetName",
    "ShardedBank",
    "ShardedLease",
    "ShardedTable",
    "set_of",
]
