"""Tests of `models/registry.py`."""

import dataclasses
import sys

import pytest
import torch
from models.harness import run_of
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import Block
from p2pswarm.models.blocks import block_costs, block_count, make_blocks, stage_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.model_source import resolved
from p2pswarm.models.registry import (
    NAME_CHARS_MAX,
    family,
    function_of,
    is_place,
    register,
    require,
    requirement_of,
    trust,
)
from p2pswarm.settings.config import ModelConfig, RunConfig

SOURCE = """
from torch import nn

def make(config):
    return nn.Sequential(
        nn.Embedding(config.vocabulary, config.d_model),
        nn.Sequential(nn.Linear(config.d_model, config.d_model), nn.Tanh()),
        nn.Linear(config.d_model, config.vocabulary),
    )

number = 3
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that nothing has imported before."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_sequence_of_modules_of_a_package_is_a_model(package):
    run = resolved(RunConfig(model=ModelConfig(family=f"{package}:make", d_model=8)))

    assert run.model.package == package
    assert block_count(run.model) == 3
    assert resolved(run) is run


def test_a_strangers_manifest_makes_nobody_import_anything(package):
    with pytest.raises(Unusable, match=rf'serve\.packages = \["{package}"\]'):
        block_count(ModelConfig(family=f"{package}:make"))

    assert package not in sys.modules
    with pytest.raises(Unusable, match="code of the package os"):
        function_of("os:abort")


def test_who_serves_names_the_packages_that_may_be_imported(package):
    trust([package])

    assert isinstance(function_of(f"{package}:make")(ModelConfig()), nn.Sequential)


@pytest.mark.parametrize(
    ("family", "match"),
    [
        ("{}:number", "is no function"),
        ("{}:nothing", "has no attribute 'nothing'"),
        ("{}.inner:make", "there is no module {}.inner"),
        ("{}_gone:make", "PYTHONPATH"),
        ("{}:nothing", "cannot be imported: AttributeError"),
    ],
)
def test_a_function_that_is_not_there_is_told_in_a_line(package, family, match):
    place = family.format(package)
    trust([package, f"{package}_gone"])

    with pytest.raises(Unusable, match=match.format(package)) as caught:
        function_of(place)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("import a_module_of_nobody", "imports a_module_of_nobody, which is not here: install it"),
        ("def make(", r"cannot be imported: .*never closed \("),
        ("1/0", r"cannot be imported: ZeroDivisionError: division by zero \(.*\.py, line 1\)"),
        ("raise SystemExit", r"cannot be imported: SystemExit \(.*\.py, line 1\)"),
    ],
)
def test_a_module_that_fails_is_told_with_its_line(package, tmp_path, source, match):
    (tmp_path / f"{package}.py").write_text(source)
    trust([package])

    with pytest.raises(Unusable, match=match) as caught:
        function_of(f"{package}:make")

    assert "\n" not in str(caught.value)


def test_who_lacks_the_package_is_told_what_to_install():
    require(requirement_of("torch.nn:Linear"))
    require("a_folder_of_mine")
    assert requirement_of("torch.nn:Linear").startswith("torch==")
    with pytest.raises(Unusable, match=r"here is none: pip install mypackage==1\.2$"):
        require("mypackage==1.2")
    with pytest.raises(Unusable, match=r"pip install torch==1\.0$"):
        require("torch==1.0")
    with pytest.raises(Unusable, match="not NAME==VERSION"):
        require("x==1; curl evil")


@pytest.mark.parametrize("name", ["gpt", "hf:llama", "a:b:c", "a.b", "a:", ":b", "a b:c", "a-b:c"])
def test_other_names_are_no_places_of_functions(name):
    assert not is_place(name)


CPU = torch.device("cpu")
MODEL = ModelConfig(family="skipping", d_model=16, sequence_length=12)
RUN = RunConfig(stages=3, model=MODEL)


def test_an_unknown_family_names_those_known_and_how_to_register():
    with pytest.raises(Unusable, match=r"known are .*gpt, .*skipping") as caught:
        family("nowhere")

    assert 'register("nowhere")' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_may_be_registered_again_and_another_may_not():
    def one(config):
        return [nn.Linear(2, 2)]

    again = one
    assert register("again")(one) is one
    register("again")(again)
    with pytest.raises(ValueError, match=r"registered already, by .*one"):
        register("again")(lambda config: [nn.Linear(2, 2)])
    assert family("again") is one


@pytest.mark.parametrize("name", ["", "a\nb", "x" * (NAME_CHARS_MAX + 1)])
def test_a_name_that_no_manifest_holds_is_our_callers_mistake(name):
    with pytest.raises(ValueError, match="printable"):
        register(name)


def test_first_weights_depend_on_the_seed_and_the_blocks_number_alone():
    def drawn(run, numbers):
        flat = FlatParameters(run, numbers, CPU)
        torch.manual_seed(99)  # the process's own chance does not matter
        flat.draw()
        return flat

    whole, part = drawn(RUN, range(3)), drawn(RUN, range(1, 2))
    theirs = list(whole.blocks[1].parameters())
    assert all(map(torch.equal, part.parameters, theirs))
    assert not torch.equal(
        theirs[0], drawn(dataclasses.replace(RUN, seed=2), range(1, 2)).parameters[0]
    )


def test_drawing_leaves_the_process_its_own_chance():
    flat = FlatParameters(RUN, range(3), CPU)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    flat.draw()

    assert torch.equal(torch.rand(3), wanted)


def test_constants_of_a_block_are_there_with_it():
    (block,) = FlatParameters(RUN, range(1, 2), CPU).blocks

    assert block.share == 0.5


def test_a_parameter_with_two_names_stays_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4, bias=False)
            self.other = nn.Linear(4, 4, bias=False)
            self.other.weight = self.one.weight

    flat = FlatParameters(run_of([Twice]), range(1), CPU)
    flat.draw()

    assert flat.length == 16
    assert flat.blocks[0].one.weight is flat.blocks[0].other.weight is flat.parameters[0]
    assert flat.parameters[0].any()


def test_blocks_are_cut_by_their_cost_or_by_their_parameters():
    sizes = (3, 1, 1, 5)
    linear = run_of([lambda n=n: nn.Linear(n, n, bias=False) for n in sizes], stages=2)
    assert block_costs(linear.model) == (9, 1, 1, 25)
    assert [stage_blocks(linear, s) for s in range(2)] == [range(3), range(3, 4)]
    assert block_costs(MODEL) == (1.0, 1.0, 1.0)


def test_more_stages_than_blocks_are_the_users_mistake():
    with pytest.raises(Unusable, match="4 is more than the 3 blocks"):
        stage_blocks(dataclasses.replace(RUN, stages=4), 0)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


class Drawn(Block):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def draw(self, generator):
        self.weight.fill_(7.0)


class Frozen(Drawn):
    def __init__(self):
        super().__init__()
        self.weight.requires_grad_(False)


class Complex(Drawn):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))


class OwnState(Drawn):
    def state_dict(self, *_args, **_kept):
        raise KeyError("mine")


class Costly(Drawn):
    def __init__(self, cost):
        super().__init__()
        self.cost = cost


class Asking(Drawn):
    @property
    def cost(self):
        raise KeyError("mine")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Costly(-1.0), r"block 0 \(Costly\) has the cost -1.0: it is a number from 0 on"),
        (lambda: Costly(float("nan")), "has the cost nan"),
        (lambda: Costly(float("inf")), "has the cost inf"),
        (Asking, r"block 0 \(Asking\) does not say its cost: KeyError: 'mine' \(test_registry"),
        (lambda: nn.LazyLinear(3), "weight has no size before a first forward"),
    ],
    ids=["negative", "no number", "infinite", "raising", "lazy"],
)
def test_a_block_whose_cost_or_size_is_none_says_so(make, match):
    with pytest.raises(Unusable, match=match):
        block_costs(run_of([make]).model)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: nn.BatchNorm1d(3), "buffer num_batches_tracked, which would not be averaged"),
        (Bare, r"Bare has parameters and no reset_parameters\(\)"),
        (Frozen, "weight does not train"),
        (Complex, r"weight is torch\.complex64, and weights are real numbers: make it two"),
        (OwnState, r"block 0 \(OwnState\) cannot be used: KeyError: 'mine' \(test_registry"),
    ],
    ids=["batch norm", "bare", "frozen", "complex", "own state"],
)
def test_a_block_that_cannot_be_trained_here_says_why(make, match):
    run = run_of([make])

    with pytest.raises(Unusable, match=match):
        make_blocks(run, range(1))


def test_a_parameter_of_two_blocks_is_refused():
    shared = nn.Linear(2, 2)

    with pytest.raises(Unusable, match="share a parameter"):
        block_costs(run_of([lambda: shared, lambda: shared]).model)


def test_a_block_may_draw_its_own_first_weights():
    flat = FlatParameters(run_of([Drawn, lambda: nn.Dropout(0.0)]), range(2), CPU)
    flat.draw()

    assert bool((flat.parameters[0] == 7.0).all())
