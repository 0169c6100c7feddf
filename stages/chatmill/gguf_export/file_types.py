"""The types of weights in a GGUF file; a module that imports little, as all stages check the parameters of each."""

from typing import Literal

Quantization = Literal["f16", "q8_0", "q4_0"]
FileType = Literal["f32", "f16", "q8_0", "q4_0"]
