"""Functions by name, for ranks of a job: every rank runs the same program, so it has them too.

Functions never go over the network. A function is named by its module and its qualified name. A
name calls nothing but functions of the program's own modules that this rank has loaded: not one of
Python's library or of an installed package, which may run any command, whoever wrote the name.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

from malt._errors import ConfigError

Name = tuple[str, str]  # of the module, and in it


class Names:
    """The program's functions, by name.

    `module`: one of the program's, whose package is the program's even if it is installed.
    """

    def __init__(self, module: str) -> None:
        self._package = _package_of(module)

    def name_of(self, function: Callable[..., Any]) -> Name:
        """Return the name by which the other ranks find the function.

        Raises:
            malt.ConfigError: it has none.
        """
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):
            raise ConfigError(
                f"{function!r} cannot be called by the ranks of a job: it has no name in a module; "
                "give a function that is defined with `def` at the top of a module"
            )
        if "<" in name:
            raise ConfigError(
                f"{module}.{name} cannot be called by the ranks of a job: functions are sent by "
                "name, so that no code goes over the network, and a lambda or a function inside "
                "another one has none; define it with `def` at the top of the script or of a "
                "module, and give what it refers to as theta"
            )
        if _look_up(sys.modules.get(module), name) is not function:
            raise ConfigError(
                f"{module}.{name} cannot be called by the ranks of a job: that name means another "
                "object; give a function that is defined with `def` at the top of a module, or of "
                "the script that each rank runs"
            )
        self._check_own(module, name)
        return module, name

    def find(self, module: str, name: str) -> Callable[..., Any]:
        """Return the function of that name on this rank.

        Raises:
            malt.ConfigError: there is none.
        """
        self._check_own(module, name)
        if module not in sys.modules:
            raise ConfigError(
                f"this rank has not imported {module}: do so before malt.Pool(over=...), where "
                "every rank comes by"
            )
        found = _look_up(sys.modules[module], name)
        # Not what the module has imported from others, under this name.
        home = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        if not callable(found) or home != (module, name):
            raise ConfigError(
                f"this rank has no function {module}.{name}: define it before "
                "malt.Pool(over=...), where every rank comes by"
            )
        return found  # type: ignore[no-any-return]

    def _check_own(self, module: str, name: str) -> None:
        package = _package_of(module)
        if package == "__main__" or (package == self._package and package != "malt"):
            return
        file = getattr(sys.modules.get(module), "__file__", None)
        if package == "malt" or package in sys.stdlib_module_names or _is_installed(file):
            raise ConfigError(
                f"{module}.{name} cannot be called by the ranks of a job: they call functions of "
                f"the program's own modules only, and {package} is not one; call it in a function "
                "of your own"
            )


def _package_of(module: str) -> str:
    return module.partition(".")[0]


def _is_installed(file: str | None) -> bool:
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    real = os.path.realpath(file) if file else ""
    if {"site-packages", "dist-packages"} & set(real.split(os.sep)):  # of another environment
        return True
    return any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders)


def _look_up(found: object, name: str) -> Any:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
