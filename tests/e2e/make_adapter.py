"""Writes a LoRA adapter with random weights for the model of make_model.py.

usage: make_adapter.py DIRECTORY
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

RANK, HIDDEN, LAYERS = 8, 64, 2
OUTPUTS = {"q_proj": HIDDEN, "v_proj": HIDDEN // 2}


def main(directory):
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(12)
    weights = {}
    for layer in range(LAYERS):
        for module, outputs in OUTPUTS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN)
            weights[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK)
    save_file(weights, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK}
    config |= {"target_modules": list(OUTPUTS), "bias": "none", "base_model_name_or_path": "tiny"}
    (directory / "adapter_config.json").write_text(json.dumps(config))


main(pathlib.Path(sys.argv[1]))
