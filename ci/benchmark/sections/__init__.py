"""The sections of the page, in its order; a family of files adds one."""

from __future__ import annotations

from benchmark.case import Section
from benchmark.sections import (
    causal,
    cc4s,
    dense,
    hole,
    imports,
    mag,
    opening,
    pairs,
    remote,
    safetensors,
    scale,
    vespa,
    virtual,
    write,
)

SECTIONS: dict[str, Section] = {
    each.SECTION.name: each.SECTION
    for each in (
        dense,
        pairs,
        cc4s,
        causal,
        vespa,
        hole,
        mag,
        safetensors,
        opening,
        scale,
        remote,
        virtual,
        write,
        imports,
    )
}
