"""The command ``mae``: a table of verbs, and nothing heavy until one is chosen.

A verb is a function.  Training verbs parse their own arguments through Lightning; the others get
their options from the function's signature.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from mae.errors import MAEError, did_you_mean

# verb: ("module:function", one line for the overview)
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("mae.commands.demo:demo", "the whole path on real satellite imagery, in minutes"),
    "pack": ("mae.commands.pack:pack", "images -> WebDataset shards with a manifest"),
    "index": ("mae.commands.index:index", "a manifest for anybody's tars, which stay as they are"),
    "inspect": ("mae.commands.inspect:inspect", "what is in shards, and whether they are whole"),
    "recipes": ("mae.commands.recipes:recipes", "list, show or copy the shipped recipes"),
    "pretrain": ("mae.commands.pretrain:pretrain", "masked-autoencoder pretraining from a recipe"),
    "finetune": ("mae.commands.finetune:finetune", "train encoder and head on labelled images"),
    "probe": ("mae.commands.probe:probe", "frozen features against honest baselines"),
    "reconstruct": ("mae.commands.reconstruct:reconstruct", "pictures of what the model fills in"),
    "export": ("mae.commands.export:export", "encoder weights for elsewhere, with a proof"),
    "report": ("mae.commands.report:report", "one self-contained page about a run"),
    "bench": ("mae.commands.bench:bench", "how fast this machine reads, decodes and augments"),
}
# These read their command line themselves.
RAW_VERBS = frozenset({"pretrain", "finetune"})

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status.

    Args:
        argv: Arguments after the program's name; None takes them from the command line.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        with contextlib.suppress(BrokenPipeError):  # its reader has seen enough
            print(overview(), flush=True)
        return 0
    if arguments[0] == "--version":
        from mae import __version__

        print(f"domain-mae {__version__}")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        _complain(f"unknown command {verb!r}{did_you_mean(verb, VERBS)}\nmae --help lists them all")
        return EXIT_USAGE
    return _run(verb, rest)


def overview() -> str:
    """Return the text of ``mae --help``."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, (_, summary) in VERBS.items()]
    return "\n".join(
        [
            "usage: mae COMMAND [OPTIONS]",
            "",
            "Masked-autoencoder pretraining for domain images.",
            "",
            *lines,
            "",
            "mae COMMAND --help shows a command's options; mae --version the version.",
        ]
    )


def _run(verb: str, arguments: list[str]) -> int:
    # OpenMP threads wait by spinning, for milliseconds, which slows small models several times over
    # when anything else runs on the machine; some ten microseconds cost little on an idle one.
    # Read when torch is loaded; the user's own setting stands.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        module_name, function_name = VERBS[verb][0].split(":")
        function = getattr(importlib.import_module(module_name), function_name)
        if verb in RAW_VERBS:
            function(arguments)
        else:
            from mae.commands.signature import call_with_arguments

            call_with_arguments(function, arguments, prog=f"mae {verb}")
    except MAEError as error:
        _complain(_without_worker_traceback(error))
        return EXIT_ERROR
    except SystemExit as ended:
        return _status_of(ended)
    except KeyboardInterrupt as error:
        _complain(str(error) or f"mae {verb} was interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno is None:
            raise
        place = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror}{place}\ncheck free disk space and permissions, then run again")
        return EXIT_ERROR
    return 0


def _without_worker_traceback(error: MAEError) -> str:
    """Return the message; what a loader's worker raised comes wrapped in its traceback."""
    marker = f"{type(error).__module__}.{type(error).__name__}: "
    return str(error).rpartition(marker)[2].strip()


def _status_of(ended: SystemExit) -> int:
    """Return the exit status of a verb that ended itself, as argparse and Lightning do."""
    if type(ended).__name__ == "SIGTERMException":  # Lightning's, known without importing it
        _complain("terminated; a training run goes on from its last checkpoint with --resume")
        return EXIT_TERMINATED
    if isinstance(ended.code, str):
        _complain(ended.code)
        return EXIT_ERROR
    return ended.code or 0


def _complain(message: str) -> None:
    print(f"mae: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
