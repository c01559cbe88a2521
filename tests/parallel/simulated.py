"""Many ranks in one process: their control messages are counted, and carried from one to the other in memory."""

import threading
from collections import Counter, defaultdict, deque
from queue import SimpleQueue
from types import SimpleNamespace
from unittest.mock import patch

import torch

from paceline.core.world import World
from paceline.parallel import wire
from paceline.parallel.team import Team

SECONDS = 240
STACK = 512 * 1024


class Network:
    """What torch.distributed does for control messages, between the threads of one process."""

    def __init__(self):
        self._boxes = defaultdict(SimpleQueue)
        self._lock = threading.Lock()
        self.messages, self.sent = Counter(), Counter()
        self.peers = defaultdict(set)

    def _box(self, *key):
        with self._lock:
            return self._boxes[key]

    def isend(self, tensor, to, *, group, tag):
        with self._lock:
            self.messages[group] += 1
            self.sent[group] += tensor.nbytes
            self.peers[group].add(to)
            self.peers[to].add(group)
        self._box(to, group, tag).put(tensor.clone())
        return SimpleNamespace(wait=lambda: None)

    def irecv(self, tensor, source, *, group, tag):
        box = self._box(group, source, tag)
        return SimpleNamespace(wait=lambda: tensor.copy_(box.get(timeout=SECONDS)))

    def send(self, tensor, to, **where):
        self.isend(tensor, to, **where)

    def recv(self, tensor, source, **where):
        self.irecv(tensor, source, **where).wait()


def simulate(size, work):
    """Run `work(team)` on every rank, each a thread with a real Team; return the results and the network."""
    network, results = Network(), [None] * size

    def run(rank):
        try:
            results[rank] = work(Team(World(rank=rank, size=size), torch.device("cpu"), control=rank))
        except Exception as problem:  # noqa: BLE001 - the test looks at it
            results[rank] = problem

    before = threading.stack_size(STACK)
    try:
        with patch.object(wire, "dist", network):
            threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS)
    finally:
        threading.stack_size(before)
    return results, network


def drive(protocols):
    """Run the protocol of every rank without threads; return the results, and the messages that each rank sent."""
    boxes, results, sent = defaultdict(deque), [None] * len(protocols), [0] * len(protocols)
    waiting = {}

    def resume(rank, value):
        try:
            hop = protocols[rank].send(value)
        except StopIteration as ended:
            results[rank] = ended.value
            waiting.pop(rank, None)
            return
        if hop.to is not None:
            boxes[hop.to, rank].append(hop.content)
            sent[rank] += 1
        waiting[rank] = hop.source

    for rank in range(len(protocols)):
        resume(rank, None)
    while waiting:
        ready = [rank for rank, source in waiting.items() if source is None or boxes[rank, source]]
        assert ready, "every rank waits for another"
        for rank in ready:
            source = waiting[rank]
            resume(rank, None if source is None else boxes[rank, source].popleft())
    return results, sent
