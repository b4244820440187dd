"""Sorting examples a second, against the same batches drawn with NumPy alone and with a plain Python loop: ``python -m benchmarks.tasks [--json]``."""

from benchmarks.harness import Race, Work, main

SIZE, BATCHES = 512, 100  # a batch as in training; a round takes some tenths of a second


def ours() -> Work:
    from trimtab.tasks import Sorting

    task = Sorting(vocab=100, lengths=(1, 20))

    def work() -> float:
        for step in range(BATCHES):
            task.batch(0, step, SIZE)
        return SIZE * BATCHES

    return work


def numpy_alone() -> Work:
    import numpy as np

    def work() -> float:
        for step in range(BATCHES):
            rng = np.random.default_rng(step)
            n = int(rng.integers(1, 21))
            x = rng.integers(0, 100, (SIZE, n))
            ids = np.concatenate([x, np.full((SIZE, 1), 102), np.sort(x), np.full((SIZE, 1), 101)], 1)
            labels = ids.copy()
            labels[:, : n + 1] = -100
        return SIZE * BATCHES

    return work


def python_loop() -> Work:
    import random

    def work() -> float:
        for step in range(BATCHES):
            rng = random.Random(step)
            n = rng.randint(1, 20)
            for _ in range(SIZE):
                x = [rng.randrange(100) for _ in range(n)]
                answer = [*sorted(x), 101]
                _ = ([*x, 102, *answer], [-100] * (n + 1) + answer)
        return SIZE * BATCHES

    return work


CONTESTANTS = {"trimtab": ours, "numpy": numpy_alone, "python loop": python_loop}
RACES = [Race(subject="sorting, lengths 1 to 20", unit="examples", contestants=CONTESTANTS, threads=1, floor=1e5)]

if __name__ == "__main__":
    main(RACES)
