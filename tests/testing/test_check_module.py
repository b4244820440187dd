from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.core import UsageError
from trimtab.nn import Transformer
from trimtab.testing import CheckFailed, check_module

X = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[1, 2, 3, 4], [4, 4, 0, 1], [2, 0, 3, 3]])


class Good(nn.Module):
    """A causal layer with everything a layer may have; each planted bug changes one thing."""

    def __init__(self, *, generator=None, device=None, dtype=None):
        super().__init__()
        self.mix = nn.utils.skip_init(nn.Linear, 3, 3, device=device or "cpu", dtype=dtype)
        self.scale = nn.Parameter(torch.empty(3, device=device, dtype=dtype))
        self.register_buffer("seen", torch.zeros((), device=device, dtype=dtype))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x):
        if self.training:
            self.seen += 1
        x = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None].to(x.dtype)
        return self.mix(x) * self.scale + self.seen


def test_a_good_module_passes_and_is_left_alone():
    module = Good(generator=torch.Generator().manual_seed(0)).train()
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(7)
    before, x = torch.get_rng_state(), X.clone()
    check_module(module, X, causal=True)
    check_module(Good, X, causal=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(X, x)
    assert module.training
    assert all(torch.equal(value, kept[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(
    "module",
    [
        nn.Identity(),
        nn.Dropout(0.5),
        nn.LayerNorm(3),
        nn.BatchNorm1d(6),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)),
        nn.GRU(3, 3, batch_first=True),
    ],
)
def test_torch_s_own_pass(module):
    check_module(module, X)


def test_a_model_passes():
    check_module(partial(Transformer, 5, 8, 2, 2, positions="rope"), IDS, causal=True)


def forward(change):
    """A class whose forward is the good one's, changed."""

    class Bad(Good):
        def forward(self, x):
            return change(self, super().forward, x)

    return Bad


def built(change):
    """A class whose construction is the good one's, changed."""

    class Bad(Good):
        def __init__(self, *, generator=None, device=None, dtype=None):
            super().__init__(generator=generator, device=device, dtype=dtype)
            change(self, generator=generator, device=device, dtype=dtype)

    return Bad


def draws(self, f, x):
    return f(x) + torch.rand(()).to(x.dtype)


def draws_from_numpy(self, f, x):
    return f(x) + np.random.rand()


def counts(self, f, x):
    self.calls = getattr(self, "calls", 0) + 1
    return f(x) + self.calls


def remembers_training(self, f, x):
    self.shift = getattr(self, "shift", 0) + self.training
    return f(x) + self.shift


def own_list(self, **_):
    self.parts = [nn.Linear(3, 3)]


def plain_tensor(self, **_):
    self.table = torch.ones(3)


def unused(self, **_):
    self.spare = nn.Parameter(torch.ones(2))


def own_state(self, **_):
    self.state_dict = lambda *args, **names: {}  # nothing is saved
    self.load_state_dict = lambda state: None


def ignores_generator(self, **_):
    nn.init.normal_(self.scale, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(self.mix.weight, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(self.mix.bias, generator=torch.Generator().manual_seed(0))


def global_weights(self, **_):
    nn.init.normal_(self.scale)


def wastes_draws(self, **_):
    nn.Linear(3, 3)


def buffer_elsewhere(self, **_):
    self.register_buffer("steps", torch.zeros(3), persistent=False)


class IgnoresType(Good):
    def __init__(self, *, generator=None, device=None, dtype=None):
        super().__init__(generator=generator, device=device)


class Counted(Good):
    count = 0

    def __init__(self, *, generator=None, device=None, dtype=None):
        super().__init__(generator=generator, device=device, dtype=dtype)
        Counted.count += 1
        with torch.no_grad():
            self.scale += Counted.count


class Speechless(Good):
    def extra_repr(self):
        return self.nothing


class Gated(Good):
    def __init__(self, *, generator=None, device=None, dtype=None):
        super().__init__(generator=generator, device=device, dtype=dtype)
        self.gate = nn.Parameter(torch.zeros((), device=device, dtype=dtype))

    def forward(self, x):
        return super().forward(x) + self.gate * x.flip(1)


class Picky(Good):
    def forward(self, x):
        if x.dtype == torch.bfloat16:
            raise self.kind(self.message)
        return super().forward(x)


BUGS = {
    "repr raises": (Speechless, "it has a repr"),
    "input changed in place": (forward(lambda self, f, x: f(x.relu_())), "inputs are left alone"),
    "input changed in training": (forward(lambda self, f, x: f(x.mul_(2) if self.training else x)), "inputs are left alone"),
    "calls counted": (forward(counts), "evaluation is repeatable"),
    "noise in evaluation": (forward(draws), "no global random state"),
    "noise from numpy": (forward(draws_from_numpy), "no global random state"),
    "layers in a list": (built(own_list), "the state dict holds all of it"),
    "plain tensor": (built(plain_tensor), "the state dict holds all of it"),
    "training changes a number": (forward(remembers_training), "the state dict holds all of it"),
    "empty state dict": (built(own_state), "the state dict holds all of it"),
    "batch mean taken off": (forward(lambda self, f, x: f(x - x.mean(0))), "rows do not see each other"),
    "last row left out": (forward(lambda self, f, x: f(x) - f(x)[:1]), "rows do not see each other"),
    "parameter detached": (forward(lambda self, f, x: f(x).detach() + self.scale), "gradients reach every parameter"),
    "parameter unused": (built(unused), "gradients reach every parameter"),
    "parameter times zero": (forward(lambda self, f, x: f(x) * 0 + self.scale), "gradients reach every parameter"),
    "output in float32": (forward(lambda self, f, x: f(x).float()), "no silent cast"),
    "float32 on the way": (forward(lambda self, f, x: f(x.float().to(x.dtype))), "no silent cast"),
    "float32 by copy": (forward(lambda self, f, x: f(torch.empty(x.shape).copy_(x).to(x.dtype))), "no silent cast"),
    "float32 constant": (forward(lambda self, f, x: f(x) + torch.ones(3)), "no silent cast"),
    "types that clash": (forward(lambda self, f, x: f(x) @ torch.eye(3)), "no silent cast"),
    "generator ignored": (built(ignores_generator), "the seed decides the weights"),
    "weights from the global state": (built(global_weights), "the seed decides the weights"),
    "global state used up": (built(wastes_draws), "the seed decides the weights"),
    "weights differ each time": (Counted, "the seed decides the weights"),
    "dtype ignored": (IgnoresType, "device and dtype are kept to"),
    "buffer elsewhere": (built(buffer_elsewhere), "device and dtype are kept to"),
    "looks ahead by one": (forward(lambda self, f, x: f(x) + f(x).roll(-1, 1)), "no look ahead"),
    "looks ahead through a gate that starts shut": (Gated, "no look ahead"),
    "looks at the whole": (forward(lambda self, f, x: f(x - x.mean(1, keepdim=True))), "no look ahead"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_planted_bug_is_found_by_its_rule(bug):
    module, rule = BUGS[bug]
    with pytest.raises(CheckFailed) as failure:
        check_module(module, X, causal=True)
    assert failure.value.rule == rule, failure.value


@pytest.mark.parametrize("bug", [name for name, (_, rule) in BUGS.items() if rule not in ("the seed decides the weights", "device and dtype are kept to")])
def test_a_module_already_made_is_checked_too(bug):
    module, rule = BUGS[bug]
    with pytest.raises(CheckFailed, match=rule):
        check_module(module(generator=torch.Generator().manual_seed(0)), X, causal=True)


def test_a_rule_may_be_skipped_with_a_reason():
    module, rule = BUGS["batch mean taken off"]
    check_module(module, X, causal=True, skip={rule: "planted"})
    with pytest.raises(CheckFailed, match=rule):
        check_module(module, X, causal=True, skip={"no look ahead": "another rule"})


@pytest.mark.parametrize(
    ("kind", "message", "passes"),
    [(TypeError, "no bfloat16 here", True), (TypeError, "no", False), (RuntimeError, "bfloat16 is not implemented for this", False)],
)
def test_a_type_may_be_refused_in_words(kind, message, passes):
    module = Picky()
    module.kind, module.message = kind, message
    if passes:
        return check_module(module, X)
    with pytest.raises(CheckFailed, match="no silent cast: expected bfloat16 to work"):
        check_module(module, X)


def test_outputs_may_be_nested_and_inputs_no_tensors():
    class Nested(Good):
        def forward(self, x, *, times=1):
            return {"a": [super().forward(x)], "b": (x * 2, None)}

    check_module(Nested, X)

    class Twice(Good):
        def forward(self, x, how):
            return super().forward(x) * how["times"]

    check_module(Twice, X, {"times": 2})


@pytest.mark.parametrize("inputs", [(), (X[:1],), (torch.ones(3, 2, 3),), ("text",)])
def test_inputs_without_two_rows_that_differ_are_refused(inputs):
    with pytest.raises(UsageError, match="at least two rows that differ"):
        check_module(nn.Identity(), *inputs)


def test_wrong_calls_are_refused():
    with pytest.raises(UsageError, match="unknown rule 'gradients'; allowed: it has a repr"):
        check_module(nn.Identity(), X, skip={"gradients": "no"})
    with pytest.raises(UsageError, match=r"must be an nn\.Module or make one, got int"):
        check_module(lambda: 3, X)
    with pytest.raises(UsageError, match="at least two tokens"):
        check_module(nn.Identity(), X[:, :1], causal=True)
