"""Publication of complete files: a set of files is replaced whole, or not at all.

The last file is the index, which names the others. It is out of the way while they are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from xr_tensorfmt.writing.atomic_file import UNCHANGED, AtomicFile, Replacement

INCOMPLETE = "some of its files were replaced, so it cannot be read until it is written again"


def publish(files: Sequence[AtomicFile]) -> None:
    """Let complete files appear. If one of them fails, restore the others."""
    *others, last = files
    if not others:
        with last.explain_errors():
            last.publish()
        return
    siblings = [file.plan_replacement() for file in others]
    index = last.plan_index_replacement(siblings)
    begun: list[Replacement] = []
    try:
        for replacement in (index, *siblings):
            begun.append(replacement)  # before, because Ctrl-C may end the next line
            replacement.set_aside()
        for replacement in (*siblings, index):
            replacement.publish()
    except BaseException as error:
        outcome = _undo(begun)
        if isinstance(error, OSError) and (explained := last.explain(error, outcome)) is not error:
            raise explained from error
        error.add_note(f"{last.target} was not written; {outcome}.")
        raise
    for replacement in begun:
        replacement.forget()


def _undo(begun: Sequence[Replacement]) -> str:
    """Restore the previous files, the index last. Return the state of the target."""
    is_restored = True
    for replacement in reversed(begun):
        try:
            replacement.undo(is_complete=is_restored)
        except OSError:
            is_restored = False
    return UNCHANGED if is_restored else INCOMPLETE
