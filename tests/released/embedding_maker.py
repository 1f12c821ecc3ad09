"""What the makers' implementation, sentence-transformers in f32 on the CPU, says of texts: run in an environment with
the packages of embeddings.txt, by test_embeddings.py. Standard input: {"folder", "texts", "more"}; output: {"ids",
"vectors", "more_ids"}, the last of the texts in "more". Texts go one by one, so that none is padded."""
import json
import sys

import torch
from sentence_transformers import SentenceTransformer


def main():
    work = json.load(sys.stdin)
    model = SentenceTransformer(work["folder"], device="cpu", model_kwargs={"dtype": torch.float32})
    vectors = [model.encode(text, normalize_embeddings=True).tolist() for text in work["texts"]]
    ids, more = ([model.tokenizer(text, split_special_tokens=True)["input_ids"] for text in work.get(texts, ())]
                 for texts in ("texts", "more"))
    json.dump({"ids": ids, "vectors": vectors, "more_ids": more}, sys.stdout)


main()
