"""Writes a released file as a folder that transformers loads: its weights in f32, its tokenizer, its template. Run in
an environment with the packages of evals.txt, by test_evals.py. Standard input: {"file", "tokenizer", "folder"}."""
import json
import os
import sys

from transformers import GenerationConfig, PreTrainedTokenizerFast

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import maker  # noqa: E402


def main():
    work = json.load(sys.stdin)
    file = maker.File(work["file"])
    pieces = file.key("tokenizer.ggml.tokens")
    marker = {kind: pieces[file.key(f"tokenizer.ggml.{kind}_token_id")] for kind in ("bos", "eos")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=maker.tokenizer_of(file, work["tokenizer"]), bos_token=marker[
        "bos"], eos_token=marker["eos"], pad_token=marker["eos"])
    tokenizer.chat_template = file.key("tokenizer.chat_template")
    tokenizer.save_pretrained(work["folder"])
    model = maker.model_of(file)
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=work["ends"], pad_token_id=work["ends"][0])
    model.save_pretrained(work["folder"])


main()
