"""The kind of the processor, from which `auto` chooses how to compute; it never depends on a measured time."""

import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Processor:
    vendor: str = ""  # as the processor names it; "" if it does not
    flags: frozenset[str] = frozenset()  # its abilities, as Linux names them

    @property
    def gains_by_bfloat16(self) -> bool:
        """Whether products in bfloat16 are faster than in float32.

        AMX was made for them. With AVX-512 alone they took half the time on AMD's Zen 5, but 1.5 times as long on an
        Intel Sapphire Rapids whose AMX the host hides. On ARM nothing was measured.
        """
        return "amx_bf16" in self.flags or (self.vendor == "AuthenticAMD" and "avx512_bf16" in self.flags)

    @property
    def gains_by_compiled_float32(self) -> bool:
        """Whether compiled steps in float32 are much faster: by a fifth on Sapphire Rapids, a twentieth on Zen 5."""
        return self.vendor == "GenuineIntel" and "avx512f" in self.flags


def own_processor() -> Processor:
    """The processor of this machine; one without vendor and flags on systems other than Linux."""
    return Processor(_cpuinfo("vendor_id"), frozenset(_cpuinfo("flags|Features").split()))


def _cpuinfo(key: str) -> str:
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.exists() else ""
    found = re.search(rf"^(?:{key})[ \t]*:(.*)", text, re.MULTILINE)
    return found[1].strip() if found else ""


def machine_properties() -> list[Any]:
    """The properties of this machine that decide in which order and precision numbers are added up."""
    import torch  # only here: describe_machine needs it not

    abilities = sorted(name for name, value in torch.cpu.get_capabilities().items() if value is True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return [torch.__version__, torch.backends.cpu.get_cpu_capability(), own_processor().vendor, abilities, device]


def describe_machine(threads: int) -> dict[str, Any]:
    """The processor, its load, and the versions of the libraries."""
    libraries = {name: version(name) for name in ("torch", "onnxruntime")}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    python = platform.python_version()
    return {"processor": processor_name(), "threads": threads, "load": load, "python": python, **libraries}


def processor_name() -> str:
    return _cpuinfo("model name") or platform.machine()
