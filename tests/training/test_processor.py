import pytest

from chatmill import processor
from chatmill.processor import Processor, own_processor, parse_cpuinfo
from chatmill.training.hardware import choose_compile, choose_precision

AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"
X86 = """processor	: 0
vendor_id	: {}
cpu family	: 6
model name	: of a test
flags		: fpu vme de pse sse2 ht avx2 {}
vmx flags	: vnmi amx_bf16
bugs		: spectre_v1 avx512_bf16

processor	: 1
vendor_id	: {}
flags		: fpu
"""
ARM = """processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd aes sha2 asimdhp asimddp sve {}
CPU implementer	: 0x41
CPU part	: 0xd40
"""


def x86(vendor, flags):
    return X86.format(vendor, flags, vendor)


KINDS = {
    "AMD Zen 3": x86("AuthenticAMD", "vaes"),
    "AMD Zen 4": x86("AuthenticAMD", f"{AVX512} avx512_vnni avx512_bf16"),
    "AMD Zen 5": x86("AuthenticAMD", f"{AVX512} avx512_vnni avx_vnni avx512_bf16 avx512_vp2intersect"),
    "Sapphire Rapids": x86("GenuineIntel", f"{AVX512} avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"),
    "Sapphire Rapids without AMX": x86("GenuineIntel", f"{AVX512} avx512_bf16 avx512_fp16"),
    "Ice Lake": x86("GenuineIntel", f"{AVX512} avx512_vnni"),
    "Alder Lake": x86("GenuineIntel", "avx_vnni"),
    "Graviton 2": ARM.format(""),
    "Graviton 3": ARM.format("svebf16 i8mm bf16"),
}
BFLOAT16 = {"AMD Zen 4", "AMD Zen 5", "Sapphire Rapids"}
COMPILED_FLOAT32 = {"Sapphire Rapids", "Sapphire Rapids without AMX", "Ice Lake"}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_chosen_follows_from_the_kind_of_processor(name):
    known = parse_cpuinfo(KINDS[name])
    assert choose_precision("auto", "cpu", known) == ("bfloat16" if name in BFLOAT16 else "float32")
    assert known.gains_by_compiled_float32 == (name in COMPILED_FLOAT32)


def test_a_precision_that_is_set_is_taken_on_every_processor():
    for known in map(parse_cpuinfo, KINDS.values()):
        assert [choose_precision(name, "cpu", known) for name in ("float32", "bfloat16")] == ["float32", "bfloat16"]
        assert choose_compile(True, "float32", 0, 2, "cpu", known)
        assert not choose_compile(False, "bfloat16", 1e30, 2, "cpu", known)


def test_the_precision_and_the_processor_decide_together_about_compiling(monkeypatch):
    monkeypatch.setattr("chatmill.training.hardware._has_compiler", lambda device: True)

    def compiled(name, precision, device="cpu"):
        return choose_compile("auto", precision, 1e30, 2, device, parse_cpuinfo(KINDS[name]))

    assert compiled("AMD Zen 5", "bfloat16") and not compiled("AMD Zen 5", "float32")
    assert compiled("Sapphire Rapids without AMX", "float32")
    assert not compiled("Sapphire Rapids without AMX", "float32", "cuda")


@pytest.mark.parametrize("text", ["", "flags", "processor : 0\nflags\t\t:\n", "Hardware\t: BCM2835\n"])
def test_a_processor_that_says_nothing_of_itself_has_no_abilities(text):
    assert parse_cpuinfo(text) == Processor()
    assert choose_precision("auto", "cpu", Processor()) == "float32"


def test_a_system_without_the_file_has_an_unknown_processor(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    assert own_processor() == Processor()
    (tmp_path / "none").write_text(KINDS["AMD Zen 5"])
    assert own_processor().vendor == "AuthenticAMD"
