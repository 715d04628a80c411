"""Who reads what: samplers that know their rank by value.

A sampler yields one request per batch.  Ranks get equally many, and nobody asks the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch.utils.data.distributed import DistributedSampler

from datamodules.plan import Plan


class EvalRequest(NamedTuple):
    """What one evaluation batch holds.

    Attributes:
        numbers: Numbers of the samples.
        is_padding: Which of them only fill up.
        position: Position of the training stream meanwhile; a cache keeps what it needs next.
    """

    numbers: list[int]
    is_padding: list[bool]
    position: int = 0


@dataclass(frozen=True)
class Seat:
    """Which of all processes this one is, by value: workers do not ask the environment.

    Args:
        rank: Number among all processes.
        world_size: Number of all processes.
        node: Number of this node.
        num_nodes: Number of nodes.
    """

    rank: int = 0
    world_size: int = 1
    node: int = 0
    num_nodes: int = 1

    @property
    def turn(self) -> int:
        """Whose positions are this process's: those that leave this rest modulo `world_size`."""
        per_node = self.world_size // self.num_nodes
        if per_node * self.num_nodes != self.world_size:
            return self.rank
        return (self.rank - self.node * per_node) * self.num_nodes + self.node

    @property
    def is_first_of_node(self) -> bool:
        """Whether no process of this node has a lower rank."""
        return self.rank == self.node * (self.world_size // self.num_nodes)

    def lanes(self, plan: Plan) -> range | None:
        """Return the lanes that this node reads; None if it has none of its own."""
        if self.num_nodes == 1 or plan.lanes % self.num_nodes or self.world_size % self.num_nodes:
            return None
        return range(self.node, plan.lanes, self.num_nodes)


# Both samplers are DistributedSamplers by name only: they know their rank by value, and Lightning
# leaves such samplers alone where it would otherwise put its own in their place.
class StreamSampler(DistributedSampler[range]):
    """Yields the positions of this rank, one range per micro-batch.

    Ranks take turns, position by position, and those of one node lie apart by the number of nodes:
    then a node reads the lanes of a `Plan` that are its own, see `Seat`.

    Args:
        start: First position of the stream that is still to be read, over all ranks.
        num_batches: Micro-batches to yield.
        num_total: Micro-batches of the whole run, which is the length that Lightning sees.
        batch_size: Images per rank and micro-batch.
        seat: Which rank this is.
    """

    def __init__(
        self, *, start: int, num_batches: int, num_total: int, batch_size: int, seat: Seat
    ):
        self.start, self.num_batches, self.num_total = start, num_batches, num_total
        self.batch_size, self.seat = batch_size, seat

    def __len__(self) -> int:
        return self.num_total

    def __iter__(self) -> Iterator[range]:
        world_size = self.seat.world_size
        first = self.start + (self.seat.turn - self.start) % world_size
        length = self.batch_size * world_size
        for number in range(self.num_batches):
            begin = first + number * length
            yield range(begin, begin + length, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the position already says which epoch it is."""


class EvalSampler(DistributedSampler[EvalRequest]):
    """Yields every sample exactly once over all ranks; ranks fill up to equal numbers.

    Args:
        num_samples: Samples of the split.
        batch_size: Images per rank and batch.
        rank: This rank.
        world_size: Number of ranks.
        position: Returns the position of the training stream.
    """

    def __init__(
        self,
        *,
        num_samples: int,
        batch_size: int,
        rank: int,
        world_size: int,
        position: Callable[[], int] = lambda: 0,
    ):
        self.total, self.batch_size, self.position = num_samples, batch_size, position
        self.rank, self.world_size = rank, world_size
        self.per_rank = -(-num_samples // world_size)

    def __len__(self) -> int:
        return -(-self.per_rank // self.batch_size)

    def __iter__(self) -> Iterator[EvalRequest]:
        numbers = range(self.rank, self.per_rank * self.world_size, self.world_size)
        for start in range(0, self.per_rank, self.batch_size):
            chunk = numbers[start : start + self.batch_size]
            yield EvalRequest(
                [min(number, self.total - 1) for number in chunk],
                [number >= self.total for number in chunk],
                self.position(),
            )

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: evaluation has one order."""
