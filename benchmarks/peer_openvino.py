"""A workload by OpenVINO GenAI: PYTHON peer_openvino.py MODEL.gguf < WORKLOAD, in an environment with openvino-genai.

WORKLOAD is JSON: [[prompt token ids, number of output tokens], ...]. Prints output tokens a second.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai


def main() -> None:
    workload = json.load(sys.stdin)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 4, 64, 2048
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU")
    prompts = [openvino.Tensor(np.array([token_ids], np.int64)) for token_ids, _ in workload]
    configs = [greedy(count) for _, count in workload]
    pipeline.generate(prompts[:4], configs[:4])
    began = time.perf_counter()
    results = pipeline.generate(prompts, configs)
    seconds = time.perf_counter() - began
    print(sum(len(result.m_generation_ids[0]) for result in results) / seconds)


def greedy(num_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_tokens
    config.ignore_eos, config.do_sample = True, False
    return config


if __name__ == "__main__":
    main()
