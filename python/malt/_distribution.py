"""The name under which MALT is installed, which is not that of its module."""

# `malt` on a public index may be another project's.
NAME = "malt-sgd"


def pip_install(extra: str) -> str:
    """Return the command that adds an extra's packages to the MALT that is installed.

    pip takes the installed one and looks for no other, so this also works where MALT came from a
    checkout or a wheel.
    """
    return f'pip install "{NAME}[{extra}]"'
