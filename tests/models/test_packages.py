"""Models of packages: which code is imported, and what is said of code that is not here."""

import sys

import pytest
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import block_count
from p2pswarm.models.packages import function_of, is_place, require, requirement_of, trust
from p2pswarm.models.resolving import resolved
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
