#!/usr/bin/python3
"""tandem show on models, and tandem doctor on machines that are made of files. Usage: test-machine.py TANDEM TREE
[TEST…]. Standard library only."""

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TANDEM, TREE = os.path.abspath(sys.argv[1]), sys.argv[2]
TALE = TREE + "/models/tale.gguf"
LIBC, PR_CAPBSET_DROP = ctypes.CDLL(None), 24


def gguf_text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def with_more(data, keys, tensors):
    """A GGUF with more keys (name, u32) and more tensors (name, bytes, all f32)."""
    def string(at):
        size, = struct.unpack_from("<Q", data, at)
        return at + 8 + size

    def value(at, kind):
        if kind == 8:
            return string(at)
        if kind == 9:
            of, n = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(n if of == 8 else 0):
                at = string(at)
            return at if of == 8 else at + n * SIZES[of]
        return at + SIZES[kind]
    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", data, 4)
    at = 24
    for _ in range(n_keys):
        at = string(at)
        at = value(at + 4, *struct.unpack_from("<I", data, at))
    keys_end = at
    for _ in range(n_tensors):
        at = string(at)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    blob = data[(at + 31) // 32 * 32:]
    blob += bytes(-len(blob) % 32)
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors + len(tensors), n_keys + len(keys)) + data[24:keys_end]
    for name, number in keys:
        head += gguf_text(name) + struct.pack("<II", 4, number)
    head += data[keys_end:at]
    for name, size in tensors:
        head += gguf_text(name) + struct.pack("<IQIQ", 1, size // 4, 0, len(blob))
        blob += bytes((size + 31) // 32 * 32)
    return head + bytes(-len(head) % 32) + blob


def obey_modes():
    """Between fork and exec of root: files' modes bind the program, too. Another user might not reach this tree."""
    for cap in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if LIBC.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0:
            os._exit(99)


# Where this build's NPU worker looks.
PROGRAMS = os.environ.get("TANDEM_TEST_NPU_PROGRAMS", "/usr/share/tandem/npu")


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tandem-test-machine-")
        os.chmod(self.dir, 0o755)
        self.addCleanup(shutil.rmtree, self.dir)

    def tandem(self, *args, status=0, **more):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith(("TANDEM_", "XDG_"))}, "HOME": self.dir,
               "TANDEM_SOCKET": self.dir + "/none"}
        r = subprocess.run([TANDEM, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                           env=env, **more)
        self.assertEqual(r.returncode, status, r)
        self.assertNotIn("Sanitizer", r.stderr)
        return r.stdout + r.stderr

    def write(self, path, text=""):
        path = self.dir + path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w" if isinstance(text, str) else "wb") as f:
            f.write(text)
        return path


class Show(Case):
    def test_tale(self):
        out = self.tandem("show", TALE)
        for text in ("gemma3: 12 layers, width 256", "Q8_0: 85 tensors", "6144 pieces", "context       4096 tokens",
                     "fits here     yes", "tokens/s for one job"):
            self.assertIn(text, out)
        self.assertNotIn("not used", out)
        s = json.loads(self.tandem("show", "--json", TALE))
        self.assertEqual((s["architecture"], s["layers"], s["parts"], s["runs"]), ("gemma3", 12, 1, True))
        self.assertEqual(s["file_bytes"], os.path.getsize(TALE))
        # 2 layers in 12 see everything: 1 head of 64 for keys and as much for values, of 2 bytes.
        self.assertEqual(s["kv_bytes_per_token"], 2 * 2 * 64 * 2)
        self.assertAlmostEqual(s["tokens_per_s"], s["memory_bytes_per_s"] / s["bytes_per_token"], delta=1)
        self.assertGreater(s["memory_bytes_per_s"], 1e8)

    def tale(self):
        with open(TALE, "rb") as f:
            return f.read()

    def test_sets(self):
        """What the model does without is named, with count and size, and takes no part in what a token reads."""
        tale = self.tale()
        path = self.write("/more.gguf", with_more(tale, [], [
            ("v.blk.0.ffn_up.weight", 4096), ("v.patch_embd.weight", 64), ("mm.input_projection.weight", 128),
            ("a.blk.0.ffn_up.weight", 512), ("mm.a.mlp.1.weight", 256),
            ("blk.12.nextn.eh_proj.weight", 2048), ("blk.12.attn_norm.weight", 1024), ("mtp.fc.weight", 32)]))
        s, plain = (json.loads(self.tandem("show", "--json", p)) for p in (path, TALE))
        self.assertEqual([(x["name"], x["tensors"], x["bytes"]) for x in s["not_used"]],
                         [("vision", 3, 4288), ("draft head", 3, 3104), ("audio", 2, 768)])
        for key in ("layers", "weights", "types", "bytes_per_token"):
            self.assertEqual(s[key], plain[key], key)
        out = self.tandem("show", path)
        for text in ("not used      vision: 3 tensors, 4.2 KiB", "draft head: 3 tensors", "audio: 2 tensors, 768 B"):
            self.assertIn(text, out)

    def test_draft_block(self):
        """A block that a file counts as a draft head's is none of the model's layers."""
        tale = self.tale()
        key = "gemma3.nextn_predict_layers"
        s = json.loads(self.tandem("show", "--json", self.write("/one.gguf", with_more(tale, [(key, 1)], []))))
        self.assertEqual((s["layers"], [(x["name"], x["tensors"]) for x in s["not_used"]]), (11, [("draft head", 13)]))
        path = self.write("/all.gguf", with_more(tale, [(key, 12)], []))
        self.assertIn("it is a draft head and not a model", self.tandem("show", path, status=1))
        path = self.write("/in.gguf", with_more(tale, [], [("blk.11.nextn.eh_proj.weight", 64)]))
        self.assertIn("is a draft head's, but the key gemma3.block_count counts its block",
                      self.tandem("show", path, status=1))

    def test_names(self):
        os.makedirs(self.dir + "/.local/share/tandem/models")
        os.symlink(os.path.abspath(TALE), self.dir + "/.local/share/tandem/models/tale.gguf")
        self.assertIn("gemma3", self.tandem("show", "tale"))
        self.assertIn("did you mean tale?", self.tandem("show", "tal", status=1))
        self.tandem("show", status=2)

    def test_refused(self):
        """A file that Tandem cannot run is described as far as it goes, with the reason."""
        text = gguf_text
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.architecture") + struct.pack("<I", 8)
        path = self.write("/x.gguf", head + text("mamba"))
        out = self.tandem("show", path, status=1)
        self.assertIn("architecture  mamba", out)
        self.assertRegex(out, "runs +no: .*mamba")
        self.assertIn("cannot open", self.tandem("show", self.dir + "/none.gguf", status=1))
        self.tandem("show", self.write("/y.gguf", "no model"), status=1)


class Doctor(Case):
    def setUp(self):
        super().setUp()
        self.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: sse avx2 avx512bw avx512_vnni \n")
        self.write("/proc/meminfo", "MemTotal: 32000000 kB\nMemAvailable: 16000000 kB\n")
        self.kernel("6.14.1-amd64")

    def kernel(self, release):
        self.write("/proc/sys/kernel/osrelease", release + "\n")

    def device(self, folder, vendor, product, driver=None, **more):
        for name, value in (("vendor", vendor), ("device", product), *more.items()):
            self.write("%s/%s" % (folder, name), value + "\n")
        if driver:
            os.makedirs(self.dir + "/sys/bus/pci/drivers/" + driver, exist_ok=True)
            os.symlink(self.dir + "/sys/bus/pci/drivers/" + driver, self.dir + folder + "/driver")

    def gpu(self, vendor="0x1002", driver="amdgpu", icd="radeon_icd.x86_64.json"):
        self.device("/sys/class/drm/renderD128/device", vendor, "0x150e", driver)
        if icd:
            self.write("/usr/share/vulkan/icd.d/" + icd)
        return self.write("/dev/dri/renderD128")

    def npu(self, driver="amdxdna"):
        self.device("/sys/class/accel/accel0/device", "0x1022", "0x17f0", driver, fw_version="1.5.2.380")
        self.write("/usr/lib/x86_64-linux-gnu/libxrt_driver_xdna.so.2")
        self.write(PROGRAMS + "/strix/manifest")
        return self.write("/dev/accel/accel0")

    def doctor(self, status=0, **more):
        return self.tandem("doctor", "--root", self.dir, status=status, **more)

    def test_no_device(self):
        out = self.doctor()
        for text in ("A CPU, 1 threads, AVX-512 with VNNI", "Linux 6.14.1-amd64", "GPU          none found",
                     "NPU          none found", "npu worker   computes on the CPU", "gpu worker   computes on the CPU",
                     "nothing to mend"):
            self.assertIn(text, out)

    def test_everything(self):
        self.gpu()
        self.npu()
        out = self.doctor()
        self.assertIn("driver amdxdna, firmware 1.5.2.380, /dev/accel/accel0", out)
        self.assertIn("AMD (1002:150e), driver amdgpu, /dev/dri/renderD128", out)
        self.assertIn("computes on the GPU by Vulkan", out)
        self.assertIn("nothing to mend", out)

    def test_npu_software(self):
        self.npu()
        self.assertIn(f"ok    NPU programs {PROGRAMS}/strix", self.doctor())
        os.unlink(self.dir + PROGRAMS + "/strix/manifest")
        out = " ".join(self.doctor().split())
        self.assertIn("has no set of programs", out)
        self.assertIn("npu-worker/programs/build --device npu2 --out DIR", out)
        os.unlink(self.dir + "/usr/lib/x86_64-linux-gnu/libxrt_driver_xdna.so.2")
        out = self.doctor(status=1)
        self.assertIn("sudo apt install libxrt-npu2", out)

    def test_memlock(self):
        """The NPU's driver library locks 64 MiB. Without an NPU the limit matters to nobody."""
        self.write("/proc/self/limits", "Limit   Soft Limit   Hard Limit   Units\n"
                                        "Max locked memory         8388608              8388608              bytes\n")
        self.assertNotIn("MEND", self.doctor())
        self.npu()
        out = self.doctor(status=1)
        self.assertIn("MEND  memlock      8.0 MiB may be locked, and the NPU's driver library locks 64 MiB", out)
        self.assertIn("memlock unlimited", out)
        self.write("/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n")
        self.assertIn("ok    memlock      no limit", self.doctor())

    def test_lavapipe(self):
        self.write("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
        self.assertIn("none found; Vulkan on the CPU (lavapipe) is installed", self.doctor())
        self.gpu(icd=None)
        out = self.doctor(status=1)
        self.assertIn("there is no Vulkan driver for it", out)
        self.assertIn("sudo apt install mesa-vulkan-drivers", out)

    def test_permission(self):
        for node in (self.gpu(), self.npu()):
            os.chmod(node, 0)
        out = self.doctor(status=1, preexec_fn=obey_modes if os.geteuid() == 0 else None)
        self.assertIn("/dev/dri/renderD128 does not open: Permission denied", out)
        self.assertIn("/dev/accel/accel0 does not open: Permission denied", out)
        self.assertIn("sudo usermod -aG render,video $USER", out)
        self.assertIn("2 to mend", out)

    def test_wrong_driver(self):
        self.device("/sys/bus/pci/devices/0000:c5:00.0", "0x1002", "0x150e", "vfio-pci", **{"class": "0x030000"})
        self.device("/sys/bus/pci/devices/0000:c6:00.1", "0x1022", "0x17f0", "vfio-pci", **{"class": "0x118000"})
        out = self.doctor(status=1)
        self.assertIn("GPU          AMD (1002:150e) belongs to the driver vfio-pci", out)
        self.assertIn("echo 0000:c5:00.0 >/sys/bus/pci/drivers/vfio-pci/unbind; modprobe amdgpu", out)
        self.assertIn("NPU          AMD (1022:17f0) belongs to the driver vfio-pci, not to amdxdna", out)

    def test_no_driver(self):
        self.device("/sys/bus/pci/devices/0000:c6:00.1", "0x1022", "0x17f0", **{"class": "0x118000"})
        self.assertIn("sudo modprobe amdxdna", self.doctor(status=1))
        self.kernel("6.1.0-38-amd64")
        self.assertIn("amdxdna comes with Linux 6.14", self.doctor(status=1))

    def test_nouveau(self):
        self.gpu("0x10de", "nouveau", "nouveau_icd.x86_64.json")
        self.assertIn("sudo apt install nvidia-driver", self.doctor(status=1))

    def test_kernel(self):
        self.write("/proc/sys/kernel/io_uring_disabled", "2\n")
        self.assertIn("sudo sysctl kernel.io_uring_disabled=0", self.doctor(status=1))

    def test_no_daemon(self):
        """This machine, which may have anything, and a daemon that does not run: what helps is in the build folder."""
        self.assertRegex(self.tandem("doctor", status=1), "MEND  daemon .*\n +/.*/tandemd --user &\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=1)
