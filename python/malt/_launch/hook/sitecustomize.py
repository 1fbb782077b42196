"""Makes a Python that is about to run a program the nursery of its ranks (`nursery.py`).

Python's `site` imports a module of this name before any program begins. This one lies in a folder
of its own, which is in the PYTHONPATH of the nursery alone.
"""

import os
import sys

_folder = os.path.dirname(__file__)
sys.path.remove(_folder)
sys.path_importer_cache.pop(_folder, None)
_paths = os.environ.pop("PYTHONPATH").split(os.pathsep)[1:]
if _paths:
    os.environ["PYTHONPATH"] = os.pathsep.join(_paths)
_given = os.environ.pop("MALT_NURSERY")
if not _given:  # the launcher has only asked whether Python gets here
    os._exit(0)

_before = set(sys.modules)
sys.modules.pop(__name__)
_failure = None
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the user's own
except Exception as error:
    _failure = error

try:
    from malt._launch import forking

    if os.path.dirname(forking.__file__) != os.path.dirname(_folder):
        os._exit(1)  # another MALT than the launcher's
    # The nursery ends inside this call; it returns in each rank, for which Python then goes on.
    forking.serve(*map(int, _given.split(",")), known=_before)
except BaseException:
    os._exit(1)  # the launcher then starts each rank by itself
if _failure is not None:
    raise _failure
