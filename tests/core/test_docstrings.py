"""Every public class and function explains its parameters, in an ``Args:`` section.

Values that users read but do not build may explain their fields under ``Attributes:``.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import pytest

import turnout
from turnout.core.describe import entries
from turnout.core.errors import MissingExtra

#: Modules without ``__all__`` whose public names are explained all the same.
INSIDE = {f"turnout.core.{name}" for name in ("describe", "files", "names", "plain")}


def public_modules(package):
    """Yield the modules whose ``__all__`` users import from, and those of ``INSIDE``."""
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if info.name.rpartition(".")[2].startswith("_"):
            continue
        try:
            module = importlib.import_module(info.name)
        except MissingExtra:  # whatever it has tests of its own, which do not run without it
            continue
        if hasattr(module, "__all__") or info.name in INSIDE:
            yield module
        if info.ispkg:
            yield from public_modules(module)


def names_of(module):
    """Return the public names of a module: those that it lists, or else those that it defines."""
    if hasattr(module, "__all__"):
        return module.__all__
    return [
        name
        for name, member in vars(module).items()
        if not name.startswith("_") and getattr(member, "__module__", "") == module.__name__
    ]


def public_names():
    """Return {part of the package: {qualified name: class or function}}."""
    parts = {}
    for module in (turnout, *public_modules(turnout)):
        for name in names_of(module):
            member = getattr(module, name)
            source = inspect.unwrap(member) if callable(member) else member
            if inspect.isclass(source) or inspect.isfunction(source):
                part = source.__module__.split(".")[1]
                parts.setdefault(part, {})[f"{source.__module__}.{name}"] = member
    return parts


def parameters(member):
    """Return the names of what a caller passes."""
    if dataclasses.is_dataclass(member):
        return {field.name for field in dataclasses.fields(member) if field.init}
    if hasattr(member, "_fields"):  # a named tuple
        return set(member._fields)
    if inspect.isclass(member):
        member = member.__init__
        if not getattr(member, "__module__", "").startswith("turnout"):  # object's, or an enum's
            return set()
    if hasattr(member, "__signature__"):  # made for a framework; the docstring is for people
        code = member.__code__
        n_named = code.co_argcount + code.co_kwonlyargcount
        return set(code.co_varnames[: n_named + bool(code.co_flags & inspect.CO_VARKEYWORDS)]) - {
            "self"
        }
    return inspect.signature(member).parameters.keys() - {"self"}


PARTS = public_names()


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_parameter_is_explained(part):
    missing = {
        name: unexplained
        for name, member in PARTS[part].items()
        if (
            unexplained := parameters(member)
            - entries(member.__doc__).keys()
            - entries(member.__doc__, "Attributes").keys()
        )
    }
    assert not missing


@pytest.mark.parametrize("part", sorted(PARTS))
def test_only_parameters_are_explained(part):
    stale = {
        name: extra
        for name, member in PARTS[part].items()
        if (extra := entries(member.__doc__).keys() - parameters(member))
    }
    assert not stale


#: What the symbols of a stated size of the state mean with default parameters.
SYMBOLS = {
    "clustered": lambda selector: {"d": selector.sketch_size},
    "divfl": lambda selector: {"d": selector.sketch_size},
    "fedcor": lambda selector: {"d": selector.dimension, "samples": selector.samples},
    "hics-fl": lambda selector: {"C": selector.classes},
}
#: No state of their own, a state of others, one that depends on the contexts that were seen, or one
#: of which only a part grows with the clients.
UNCHECKED = frozenset(
    {"cpow-d", "data-weighted", "fedcs", "guarded", "k-linucb", "mix", "nccb", "pace", "pow-d"}
    | {"random", "rbcs-f"}
)
_STATED = re.compile(r"\b[Ss]tate\s+(\d+|\([^)]*\))\s?n\s+bytes")


@pytest.mark.parametrize("name", turnout.list_selectors(plugins=False))
def test_the_stated_bytes_of_state_are_those_of_the_state(name):
    selector = turnout.make(name)
    stated = _STATED.search(inspect.getmodule(type(selector)).__doc__)
    if name in UNCHECKED:
        return
    assert stated, f"{name} states no size of its state"
    n = 1009
    selector.prepare(n)
    found = sum(array.nbytes for array in selector.state().values() if n in array.shape)
    symbols = SYMBOLS.get(name, lambda selector: {})(selector)
    formula = re.sub(r"(\d) ?(?=[a-zA-Z])(?!x )", r"\1 * ", stated[1]).replace(" x ", " * ")
    assert found == n * eval(formula, {}, symbols), (stated[1], found / n)
