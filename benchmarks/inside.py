"""Looking inside: lens scores and linear probes over sequences of 100 items, against PyTorch and scikit-learn: ``python -m benchmarks.inside [--json]``.

The work of a round: probabilities of identity and successor at each layer, and of each layer probes for both, trained on half of the sequences, tested on the
rest, and once more on shuffled labels. 1000 sequences are to take no more than 10 seconds on two cores.
"""

from typing import Any

from benchmarks.harness import Race, Work, main

ROWS, LENGTH, DIM = 1000, 100, 128


def _world() -> tuple[Any, Any, Any]:
    import torch

    from trimtab.nn import Transformer
    from trimtab.tasks import Sorting

    task = Sorting(vocab=100)
    model = Transformer(task.vocab.size, dim=DIM, layers=2, heads=4, generator=torch.Generator().manual_seed(0)).eval()
    return task, model, task.batch(seed=0, step=0, size=ROWS, length=LENGTH)


def ours() -> Work:
    from trimtab.metrics import hidden_states, identity_successor_scores, probe_layers, sorting_targets

    task, model, batch = _world()
    ids, labels = batch["input_ids"], batch["labels"]

    def work() -> float:
        targets = sorting_targets(ids, labels, task.vocab)
        where = targets.identity != -100
        states, half = hidden_states(model, ids, where), int(where.sum()) // 2
        identity_successor_scores(model, ids, labels, task.vocab, states=states)
        for target in (targets.identity[where], targets.successor[where]):
            probe_layers(states[:, :half], target[:half], {"held": (states[:, half:], target[half:])})
        return ROWS

    return work


def by_hand() -> Work:
    import torch
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    task, model, batch = _world()
    ids = batch["input_ids"]

    @torch.no_grad()
    def work() -> float:
        answer = slice(LENGTH + 1, 2 * LENGTH + 1)
        read = ids[:, answer]
        larger = ids[:, None, :LENGTH].masked_fill(ids[:, None, :LENGTH] <= read[:, :, None], task.vocab.eos)
        pair = torch.stack([read, larger.amin(-1)], -1)
        streams: list[Any] = []
        handles = [block.register_forward_pre_hook(lambda module, args: streams.append(args[0])) for block in model.blocks]
        streams.append(model.states(ids))
        for handle in handles:
            handle.remove()
        for stream in streams:
            p = model.unembed(stream[:, answer]).softmax(-1)
            p.gather(-1, pair).mean((0, 1))
            (p.topk(2, -1).indices.sort(-1).values == pair.sort(-1).values).all(-1).double().mean()
            x = stream[:, answer].flatten(0, 1).numpy()
            half = len(x) // 2
            for target in pair.flatten(0, 1).T:
                y = target[torch.randperm(len(target))]
                for some in (target.numpy(), y.numpy()):
                    make_pipeline(StandardScaler(), RidgeClassifier(alpha=1e-3 * half)).fit(x[:half], some[:half]).score(x[half:], some[half:])
        return ROWS

    return work


CONTESTANTS = {"trimtab": ours, "PyTorch and scikit-learn": by_hand}
RACES = [Race(subject="lens and probes, n = 100, two layers of 128", unit="sequences", contestants=CONTESTANTS, threads=2, floor=ROWS / 10)]

if __name__ == "__main__":
    main(RACES)
