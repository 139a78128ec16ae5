"""OpenVINO GenAI, which opens the GGUF file itself."""

import sys

import numpy as np
import openvino
import openvino_genai

from benchmarks.engines.driver import Clock, Driver, Generated, run


class _Ticker(openvino_genai.StreamerBase):
    """Notes when each token is handed over."""

    def __init__(self, clock: Clock):
        super().__init__()
        self._clock = clock

    def write(self, token: object) -> openvino_genai.StreamingStatus:
        for _ in token if isinstance(token, list) else [token]:
            self._clock.tick()
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class OpenVino(Driver):
    """The pipeline with its own settings, asked with token ids."""

    def __init__(self, model: str, context: str):
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU")
        self.about = f"OpenVINO GenAI {openvino_genai.__version__}"

    def generate(self, prompt: list[int], tokens: int) -> Generated:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        clock = Clock()
        ids = openvino.Tensor(np.array([prompt], np.int64))
        self._pipeline.generate(ids, config, _Ticker(clock))
        return clock.generated()


if __name__ == "__main__":
    sys.exit(run(OpenVino))
