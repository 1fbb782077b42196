"""The installed modules that a program imports before it does anything else.

They are read from its source, which is not run. Any other statement that may have an effect ends
the reading, in the program or in a module of its own that it imports: what the program imports
later may depend on that effect, as NumPy does on `os.environ["OMP_NUM_THREADS"] = "1"`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

Wanted = tuple[str, tuple[str, ...]]  # a module, and names that are taken from it

# Of such nodes is an expression that no other module sees.
_INERT = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.BinOp,
    ast.UnaryOp,
    ast.operator,
    ast.unaryop,
    ast.expr_context,
)


class _EffectError(Exception):
    """The program may do something here, or what it does cannot be known."""


class Reader:
    """Reads one program: `script.py ...` or `-m module ...`.

    Attributes:
        own_names: the modules and packages in the program's folder, which go before others.
    """

    def __init__(self, program: Sequence[str]) -> None:
        self._wanted: list[Wanted] = []
        self._seen: set[Path] = set()
        self._module = program[1] if program[0] == "-m" else ""
        self._script = Path(program[0])
        # As Python does: its first folder to look for modules in.
        self._folder = Path.cwd() if self._module else Path(os.path.realpath(program[0])).parent
        folders = [*site.getsitepackages(), site.getusersitepackages()]
        folders += [sysconfig.get_path(name) for name in ("purelib", "platlib")]
        self._installed = tuple(folder + os.sep for folder in folders)
        self.own_names = self._list_own_names()

    def read(self) -> list[Wanted]:
        """Return the modules in the order in which the program imports them."""
        with contextlib.suppress(_EffectError, IndexError):  # the latter by a relative import
            if self._module:
                self._take(self._module, ())
                self._take(f"{self._module}.__main__", ())
            else:
                self._read_file(self._script)
        return self._wanted

    def _list_own_names(self) -> set[str]:
        names = set()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                stem, _, suffix = entry.name.partition(".")
                if suffix.endswith(("py", "pyc", "so")) or Path(entry, "__init__.py").is_file():
                    names.add(stem)
        return names

    def _read_file(self, file: Path) -> None:
        if file in self._seen:
            return
        self._seen.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise _EffectError from error
        for statement in tree.body:
            match statement:
                case ast.Import(names):
                    for one in names:
                        self._take(one.name, ())
                case ast.ImportFrom("__future__"):
                    pass
                case ast.ImportFrom(module, names, 0):
                    self._take(module or "", [one.name for one in names])
                case ast.ImportFrom(module, names, int(level)):
                    folder = file.parents[level - 1]
                    parts = module.split(".") if module else []
                    self._read_own(folder, parts, [one.name for one in names])
                case _ if not _is_inert(statement):
                    raise _EffectError

    def _take(self, name: str, attributes: Iterable[str]) -> None:
        top, *parts = name.split(".")
        folder = self._folder
        if top not in self.own_names:
            try:
                spec = importlib.util.find_spec(top)
            except (ImportError, ValueError) as error:
                raise _EffectError from error
            if spec is None:  # perhaps a folder without __init__.py
                self._read_own(folder, [top, *parts], attributes)
                return
            places = list(spec.submodule_search_locations or [])
            place = spec.origin or (places[0] if places else "")
            is_own = top == self._module.partition(".")[0]
            if not is_own and (
                top in ("malt", *sys.stdlib_module_names) or place.startswith(self._installed)
            ):
                self._wanted.append((name, tuple(attributes)))
                return
            folder = Path(places[0] if places else place).parent
        self._read_own(folder, [top, *parts], attributes)

    def _read_own(self, folder: Path, parts: Sequence[str], attributes: Iterable[str]) -> None:
        """Read the modules that an import of the program's own module runs."""
        for part in parts:
            if not _is_in(folder, part):
                raise _EffectError
            file = folder / f"{part}.py"
            folder /= part
            if (folder / "__init__.py").is_file():
                self._read_file(folder / "__init__.py")
            elif file.is_file():
                self._read_file(file)
            elif not folder.is_dir():  # compiled
                raise _EffectError
        for name in attributes:
            if _is_in(folder, name):
                self._read_own(folder, [name], ())


def _is_in(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or next(folder.glob(f"{name}.*"), None) is not None


def _is_inert(statement: ast.stmt) -> bool:
    """Return whether a statement, which is no import, does nothing that another module can see."""
    match statement:
        case ast.Expr(value):
            return _is_inert_value(value)
        case ast.Assign(targets, value):
            return all(isinstance(one, ast.Name) for one in targets) and _is_inert_value(value)
        case ast.AnnAssign(ast.Name(), value=ast.expr() as value):
            return _is_inert_value(value)
        case ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]):
            defaults = [*statement.args.defaults, *statement.args.kw_defaults]
            return all(one is None or _is_inert_value(one) for one in defaults)
        case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return not statement.orelse
    return isinstance(statement, ast.Pass)


def _is_inert_value(value: ast.expr) -> bool:
    return all(isinstance(node, _INERT) for node in ast.walk(value))
