#!/usr/bin/python3
"""What `tandem doctor` says first of 31 machines that are made of files. Each machine is a good one with one fault or
more; of several, the one that matters first has to be said first. Usage: test-doctor.py TANDEM [TEST…]. Standard
library only."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TANDEM = os.path.abspath(sys.argv[1])
LIBC, PR_CAPBSET_DROP = ctypes.CDLL(None), 24
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
PROGRAMS = os.environ.get("TANDEM_TEST_NPU_PROGRAMS", "/usr/share/tandem/npu")
MIB, GIB = 1 << 20, 1 << 30

# Product, revision, the generation of its programs.
PHOENIX, STRIX = ("0x1502", "0x00", "phoenix"), ("0x17f0", "0x11", "strix")
R780M, R890M, R7600 = "0x15bf", "0x150e", "0x7480"


def obey_modes():
    """Between fork and exec of root: files' modes bind the program, too."""
    for cap in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if LIBC.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0:
            os._exit(99)


class Machine:
    """Files as Linux, Mesa and XRT have them, in a folder."""

    def __init__(self, test, kernel="7.0.4-amd64", ram=32 * GIB):
        self.dir = tempfile.mkdtemp(prefix="tandem-test-doctor-")
        os.chmod(self.dir, 0o755)
        test.addCleanup(shutil.rmtree, self.dir)
        self.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD Ryzen AI 9 HX 370\nflags\t\t: avx2 avx512bw "
                                    "avx512_vnni \n")
        self.write("/proc/meminfo", f"MemTotal: {ram // 1024} kB\nMemAvailable: {ram // 2048} kB\n")
        self.write("/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n")
        self.write("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n"
                                        "Groups:\t27 44 106 992 1000 \n")
        self.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nanna:x:1000:1000:Anna:/home/anna:/bin/bash\n")
        self.write("/etc/group", "video:x:44:anna\nkvm:x:106:anna\nrender:x:992:anna\n")
        self.write("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz root=UUID=0 ro quiet splash\n")
        self.write("/sys/class/iommu/ivhd0/amd-iommu/cap", "c02\n")
        self.write("/sys/power/state", "freeze mem disk\n")
        self.write("/sys/power/mem_sleep", "[s2idle]\n")
        self.write("/dev/udmabuf")
        self.kernel(kernel)

    def write(self, path, text=""):
        path = self.dir + path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path

    def remove(self, path):
        os.unlink(self.dir + path)

    def kernel(self, release):
        self.write("/proc/sys/kernel/osrelease", release + "\n")

    def boot(self, words):
        self.write("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz ro {words} quiet\n")

    def device(self, folder, vendor, product, driver=None, **more):
        for name, value in (("vendor", vendor), ("device", product), *more.items()):
            self.write(f"{folder}/{name}", f"{value}\n")
        if driver:
            os.makedirs(f"{self.dir}/sys/bus/pci/drivers/{driver}", exist_ok=True)
            os.makedirs(f"{self.dir}/sys/module/{driver}", exist_ok=True)
            os.symlink(f"{self.dir}/sys/bus/pci/drivers/{driver}", self.dir + folder + "/driver")

    def gpu(self, product=R890M, number=128, vendor="0x1002", driver="amdgpu", icd="radeon_icd.x86_64.json",
            level="high", vram=512 * MIB, gtt=15 * GIB):
        more = {"power_dpm_force_performance_level": level, "mem_info_vram_total": vram,
                "mem_info_gtt_total": gtt} if driver == "amdgpu" else {}
        self.device(f"/sys/class/drm/renderD{number}/device", vendor, product, driver, **more)
        if icd:
            self.write("/usr/share/vulkan/icd.d/" + icd, "{}\n")
        self.write(f"/dev/dri/renderD{number}")
        return self

    def npu_on_bus(self, npu=STRIX, driver=None, firmware=("npu.sbin.xz", "npu_7.sbin.xz")):
        """The chip alone, and the firmware that the distribution has for it."""
        self.device("/sys/bus/pci/devices/0000:c6:00.1", "0x1022", npu[0], driver,
                    **{"class": "0x118000", "revision": npu[1]})
        for name in firmware:
            self.write(f"/lib/firmware/amdnpu/{npu[0][2:]}_{npu[1][2:]}/{name}")
        return self

    def npu(self, npu=STRIX, xrt="2.21.75", plugin="2.21.75"):
        """It works: driver, node, libraries, programs."""
        self.npu_on_bus(npu, "amdxdna")
        self.device("/sys/class/accel/accel0/device", "0x1022", npu[0], "amdxdna", fw_version="1.1.2.64",
                    revision=npu[1])
        self.write("/dev/accel/accel0")
        for library, release in (("libxrt_coreutil", xrt), ("libxrt_driver_xdna", plugin)):
            self.write(f"{LIBRARIES}/{library}.so.{release}")
            major = release.split(".")[0]
            os.symlink(f"{library}.so.{release}", f"{self.dir}{LIBRARIES}/{library}.so.{major}")
        self.write(f"{PROGRAMS}/{npu[2]}/manifest")
        return self

    def battery(self, plugged=True, profile="balanced"):
        self.write("/sys/class/power_supply/BAT0/type", "Battery\n")
        self.write("/sys/class/power_supply/BAT0/capacity", "57\n")
        self.write("/sys/class/power_supply/AC0/type", "Mains\n")
        self.write("/sys/class/power_supply/AC0/online", f"{int(plugged)}\n")
        self.write("/sys/class/power_supply/hid-mouse/type", "Battery\n")
        self.write("/sys/class/power_supply/hid-mouse/scope", "Device\n")
        self.write("/sys/firmware/acpi/platform_profile", profile + "\n")
        return self


class Doctor(unittest.TestCase):
    maxDiff = None

    def out(self, machine, status=0):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEM_", "XDG_"))}
        r = subprocess.run([TANDEM, "doctor", "--root", machine.dir], stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=60, env={**env, "HOME": machine.dir},
                           preexec_fn=obey_modes if os.geteuid() == 0 else None)
        self.assertEqual(r.returncode, status, r)
        self.assertEqual(r.stderr, "")
        return r.stdout

    def first(self, machine, sentence, mend, also=()):
        """The sentence that comes first, and the command below it. also: what stands in the list."""
        out = self.out(machine, 1)
        lines = out.splitlines()
        self.assertEqual(lines[0], f"{'FIRST':18} {sentence}")
        self.assertEqual(lines[1], f"{'':18} {mend}")
        self.assertEqual(lines[2], "")
        self.assertIn("MEND", out)
        self.assertRegex(lines[-1], r"^\d+ to mend: ")
        for text in also:
            self.assertIn(text, out)
        return out

    def tip(self, machine, sentence, mend):
        out = self.out(machine)
        lines = out.splitlines()
        self.assertEqual(lines[0], f"{'TIP':18} {sentence}")
        self.assertEqual(lines[1], f"{'':18} {mend}")
        self.assertNotIn("MEND", out)
        self.assertEqual(lines[-1], "nothing to mend")
        return out

    def fine(self, machine):
        out = self.out(machine)
        self.assertNotRegex(out, r"(?m)^(FIRST|TIP|MEND)")
        self.assertEqual(out.splitlines()[-1], "nothing to mend")
        return out

    # ---- nothing to do

    def test_01_all_is_well(self):
        out = self.fine(Machine(self).gpu().npu().battery())
        for text in ("GPU          AMD (1002:150e), driver amdgpu, /dev/dri/renderD128",
                     "GPU clock    power_dpm_force_performance_level is high",
                     "GPU memory   the GPU reaches 15.0 GiB of the machine's memory (GTT), and has 512 MiB carved out",
                     "NPU          AMD (1022:17f0), driver amdxdna, firmware 1.1.2.64, /dev/accel/accel0",
                     "NPU driver   XRT 2.21.75", f"NPU programs {PROGRAMS}/strix",
                     "groups       this user is in render, video, kvm", "power        on mains, profile balanced",
                     "suspend      s2idle"):
            self.assertIn("ok    " + text, out)

    def test_02_cpu_alone(self):
        m = Machine(self)
        m.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Old CPU\nflags\t\t: sse4_2 \n")
        m.write("/sys/power/state", "freeze disk\n")
        out = self.fine(m)
        self.assertIn("no AVX2: plain C is used, which is several times slower", out)
        self.assertIn("this machine does not suspend", out)

    # ---- tandemd cannot start

    def test_03_io_uring_off(self):
        """It comes before a GPU and an NPU that cannot be used either."""
        m = Machine(self, kernel="6.12.48").gpu(icd=None).npu_on_bus()
        m.write("/proc/sys/kernel/io_uring_disabled", "2\n")
        self.first(m, "kernel: Linux 6.12.48, where io_uring is switched off: tandemd does not start",
                   "sudo sysctl kernel.io_uring_disabled=0", ["3 to mend"])

    def test_04_old_kernel(self):
        self.first(Machine(self, kernel="5.15.0-91-generic").gpu(),
                   "kernel: Linux 5.15.0-91-generic; tandemd needs 5.19 or newer", "sudo apt install linux-image-amd64")

    # ---- GPU

    def test_05_gpu_permission(self):
        m = Machine(self).gpu().npu()
        m.write("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t27 1000 \n")
        m.write("/etc/group", "video:x:44:\nkvm:x:106:\nrender:x:992:\n")
        for node in ("/dev/dri/renderD128", "/dev/accel/accel0"):
            os.chmod(m.dir + node, 0)
        self.first(m, "GPU: AMD, driver amdgpu: /dev/dri/renderD128 does not open: Permission denied",
                   "sudo usermod -aG render,video $USER   (then log in anew)",
                   ["/dev/accel/accel0 does not open: Permission denied", "2 to mend",
                    "groups       this user is in none of the device groups, not in render, video, kvm"])

    def test_06_group_not_yet_in_force(self):
        m = Machine(self).gpu()
        m.write("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t27 1000 \n")
        os.chmod(m.dir + "/dev/dri/renderD128", 0)
        self.first(m, "GPU: AMD, driver amdgpu: /dev/dri/renderD128 does not open: Permission denied",
                   "log out and in again: this user was put into the group render after this session began")

    def test_07_no_vulkan_driver(self):
        """llvmpipe alone is no driver of the GPU."""
        m = Machine(self).gpu(icd="lvp_icd.x86_64.json")
        self.first(m, "GPU: AMD, driver amdgpu: there is no Vulkan driver for it in /usr/share/vulkan/icd.d",
                   "sudo apt install mesa-vulkan-drivers", ["gpu worker   computes on the CPU: no GPU can be used"])

    def test_08_llvmpipe_alone(self):
        m = Machine(self)
        m.write("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "{}\n")
        self.assertIn("none found; Vulkan on the CPU (lavapipe) is installed: gpu = vulkan would use it, and the CPU "
                      "itself is faster", self.fine(m))

    def test_09_gpu_of_a_virtual_machine(self):
        m = Machine(self)
        m.device("/sys/bus/pci/devices/0000:c5:00.0", "0x1002", R890M, "vfio-pci", **{"class": "0x030000"})
        self.first(m, "GPU: AMD (1002:150e) belongs to the driver vfio-pci, which offers no Vulkan; amdgpu does",
                   "sudo sh -c 'echo 0000:c5:00.0 >/sys/bus/pci/drivers/vfio-pci/unbind; modprobe amdgpu; echo "
                   "0000:c5:00.0 >/sys/bus/pci/drivers/amdgpu/bind'")

    def test_10_nouveau(self):
        self.first(Machine(self).gpu("0x2820", vendor="0x10de", driver="nouveau", icd="nouveau_icd.x86_64.json"),
                   "GPU: NVIDIA with the driver nouveau: it runs at its lowest clock; NVIDIA's own driver is needed",
                   "sudo apt install nvidia-driver")

    def test_11_two_gpus(self):
        m = Machine(self).gpu().gpu(R7600, 129, vram=8 * GIB, gtt=15 * GIB)
        self.assertIn("GPU taken    AMD (1002:7480) at /dev/dri/renderD129, not AMD (1002:150e); gpu-device in "
                      "tandem.conf takes the other one", self.fine(m))

    def test_12_two_gpus_one_broken(self):
        m = Machine(self).gpu().gpu("0x28e0", 129, vendor="0x10de", driver="nvidia", icd=None)
        self.first(m, "GPU: NVIDIA, driver nvidia: there is no Vulkan driver for it in /usr/share/vulkan/icd.d",
                   "sudo apt install nvidia-vulkan-icd",
                   ["GPU taken    AMD (1002:150e) at /dev/dri/renderD128, since NVIDIA (10de:28e0) cannot be used"])

    def test_13_clock_held_low(self):
        self.first(Machine(self).gpu(level="low").npu(),
                   "GPU clock: the GPU's clock is held at its lowest (power_dpm_force_performance_level is low): it "
                   "computes several times slower than it could",
                   "echo high | sudo tee /sys/class/drm/renderD128/device/power_dpm_force_performance_level   (until "
                   "the next start; \"auto\" undoes it)")

    def test_14_clock_auto(self):
        self.tip(Machine(self).gpu(R780M, level="auto").npu(PHOENIX),
                 "GPU clock: the driver chooses the GPU's clock (power_dpm_force_performance_level is auto); \"high\" "
                 "gave 24 tokens/s in place of 19 on a Radeon 780M, for more power",
                 "echo high | sudo tee /sys/class/drm/renderD128/device/power_dpm_force_performance_level   (until the "
                 "next start; \"auto\" undoes it)")

    def test_15_small_gtt(self):
        self.tip(Machine(self).gpu(gtt=3 * GIB),
                 "GPU memory: the GPU reaches 3.0 GiB of the machine's memory (GTT): larger models do not fit it",
                 "echo \"options ttm pages_limit=6291456\" | sudo tee /etc/modprobe.d/tandem-ttm.conf && sudo "
                 "update-initramfs -u   (three quarters of the memory; then restart the machine)")

    def test_16_large_carve_out(self):
        self.tip(Machine(self, ram=16 * GIB).gpu(vram=16 * GIB, gtt=8 * GIB),
                 "GPU memory: the firmware keeps 16.0 GiB for the GPU alone; Tandem holds models in the other 8.0 GiB, "
                 "which the GPU reads too",
                 "set \"UMA frame buffer size\" (also: \"iGPU memory\") to Auto or 512 MB in the firmware setup")

    def test_17_no_udmabuf(self):
        m = Machine(self).gpu()
        m.remove("/dev/udmabuf")
        self.tip(m, "udmabuf: there is no /dev/udmabuf: rows are copied to the GPU, which costs a little time",
                 "sudo modprobe udmabuf")

    # ---- NPU

    def test_18_kernel_before_the_driver(self):
        self.first(Machine(self, kernel="6.12.48+deb13-amd64").gpu().npu_on_bus(),
                   "NPU: AMD (1022:17f0) is there; its driver amdxdna comes with Linux 6.14, and this is 6.12",
                   "sudo apt install -t stable-backports linux-image-amd64")

    def refused(self, **more):
        """amdxdna is loaded and has not taken the chip."""
        m = Machine(self, **more).gpu()
        os.makedirs(m.dir + "/sys/module/amdxdna")
        return m

    def test_19_amd_iommu_off(self):
        """As a distribution for games sets it."""
        for word in ("amd_iommu=off", "iommu=off"):
            m = self.refused().npu_on_bus()
            m.boot("mitigations=auto " + word)
            self.first(m, f"NPU: Linux was started with {word}, and the driver amdxdna does not run an NPU without the "
                          "IOMMU: the NPU stays hidden",
                       f"take {word} out of GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then: sudo update-grub && "
                       "sudo reboot")

    def test_20_iommu_off_in_firmware(self):
        m = self.refused().npu_on_bus()
        shutil.rmtree(m.dir + "/sys/class/iommu/ivhd0")
        self.first(m, "NPU: the machine's IOMMU is switched off, and the driver amdxdna does not run an NPU without "
                      "it: the NPU stays hidden",
                   "switch on \"IOMMU\" (also: \"AMD-Vi\") in the firmware setup, then restart")

    def test_21_no_firmware(self):
        self.first(self.refused().npu_on_bus(PHOENIX, firmware=()),
                   "NPU: AMD (1022:1502, revision 00): its firmware is not installed, so the driver amdxdna cannot "
                   "start it",
                   "update linux-firmware, so that /lib/firmware/amdnpu/1502_00/ is there, then: sudo modprobe -r "
                   "amdxdna; sudo modprobe amdxdna")

    def test_22_new_firmware_old_driver(self):
        self.first(self.refused(kernel="6.19.6-2").npu_on_bus(),
                   "NPU: the driver amdxdna of Linux 6.19 has not started the NPU (1022:17f0): it refuses firmware of "
                   "protocol 7, which linux-firmware brings since 2026",
                   "install Linux 7.0 or newer and restart; sudo dmesg | grep amdxdna says whether it is "
                   "\"Incompatible firmware protocol\"")

    def test_23_old_firmware_new_driver(self):
        self.first(self.refused().npu_on_bus(firmware=("npu.sbin.1.0.0.63",)),
                   "NPU: the driver amdxdna has not started the NPU (1022:17f0): its firmware is older than this "
                   "driver takes, or does not answer",
                   "update linux-firmware and restart; sudo dmesg | grep amdxdna says what the driver missed")

    def test_24_no_xrt(self):
        m = Machine(self).gpu().npu()
        for name in (".so.2", ".so.2.21.75"):
            m.remove(f"{LIBRARIES}/libxrt_driver_xdna{name}")
        self.first(m, "NPU driver: AMD's library libxrt_driver_xdna.so.2 is not installed: the NPU worker uses the CPU",
                   "sudo apt install libxrt-npu2   (Debian sid; elsewhere AMD's XRT with its xdna driver)")

    def test_25_other_abi(self):
        self.first(Machine(self).gpu().npu(xrt="3.0.1", plugin="3.0.1"),
                   "NPU driver: the XRT that is installed has another ABI than 2, which Tandem is built for: the NPU "
                   "worker uses the CPU",
                   "install XRT 2 with its xdna driver (Debian: libxrt-npu2), in place of the other one")

    def test_26_two_releases(self):
        self.first(Machine(self).gpu().npu(xrt="2.19.0", plugin="2.21.75"),
                   "NPU driver: XRT is of release 2.19.0 and its xdna driver of 2.21.75: they find no NPU together",
                   "install both of one release (Debian: libxrt2 and libxrt-npu2)")

    def test_27_memlock(self):
        m = Machine(self).gpu(level="low").npu()
        m.write("/proc/self/limits", "Max locked memory         8388608              8388608              bytes\n")
        self.first(m, "memlock: 8.0 MiB may be locked, and the NPU's driver library locks 64 MiB: a daemon of your own "
                      "finds no NPU (the system service has no limit)",
                   "echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/90-tandem.conf   (then log in "
                   "anew)", ["MEND  GPU clock"])

    def test_28_npu_permission(self):
        m = Machine(self).gpu().npu()
        m.write("/etc/group", "video:x:44:\nkvm:x:106:\nrender:x:992:\n")
        os.chmod(m.dir + "/dev/accel/accel0", 0)
        self.first(m, "NPU: driver amdxdna: /dev/accel/accel0 does not open: Permission denied",
                   "sudo usermod -aG render,video $USER   (then log in anew)")

    def test_29_driver_not_loaded(self):
        self.first(Machine(self).gpu().npu_on_bus(), "NPU: AMD (1022:17f0) at 0000:c6:00.1 has no driver",
                   "sudo modprobe amdxdna")

    # ---- power

    def test_30_low_power(self):
        """It slows everything down, so it comes before the clock that the driver chooses."""
        self.tip(Machine(self).gpu(level="auto").npu().battery(plugged=False, profile="low-power"),
                 "power: the power profile is low-power: the firmware holds CPU, GPU and NPU at low power, so every "
                 "token takes longer",
                 "powerprofilesctl set balanced   (or, without that program: echo balanced | sudo tee "
                 "/sys/firmware/acpi/platform_profile)")

    def test_31_on_battery(self):
        self.tip(Machine(self).gpu().npu().battery(plugged=False),
                 "power: on battery at 57 %, profile balanced: the machine may hold its clocks low, and tokens cost "
                 "charge", "plug it in for full speed")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
