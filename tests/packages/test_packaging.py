"""What is installed under any prefix, and that the ways to make packages agree with each other: CPack, debian/, the RPM
spec and the PKGBUILD. With --full: the source package of Debian is the same bytes each time, and holds the whole tree.
"""
import fcntl
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

BUILD = os.path.dirname(BIN)


def read(*path):
    with open(os.path.join(TREE, *path)) as f:
        return f.read()


def version():
    return re.search(r"^project\(tandem VERSION ([\d.]+)", read("CMakeLists.txt"), re.M)[1]


@test
def any_prefix():
    """Nothing lies outside the prefix, programs find their library there, and files name no other place."""
    if SANITIZER:
        raise Skip("the release build is what is installed")
    if not shutil.which("cmake"):
        raise Skip("no cmake here")
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "opt", "t")
        with open(os.path.join(BUILD, "install_manifest.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the full run has this test twice, and one manifest
            r = subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, timeout=300)
            check(r.returncode == 0, "cmake --install", r.stderr[-1500:])
            r_install = r
            with open(os.path.join(BUILD, "install_manifest.txt")) as f:
                outside = [p for p in f.read().split("\n") if p and not p.startswith(prefix + "/")]
        equal(outside, [], "files outside the prefix")
        equal(os.listdir(folder), ["opt"], "beside it")
        env = {"PATH": "/usr/bin:/bin", "HOME": folder}
        r = subprocess.run([prefix + "/bin/tandem", "--version"], env=env, stdout=subprocess.PIPE, text=True,
                           timeout=60)
        check(f"tandem {version()}" in r.stdout, "tandem --version", r)
        r = subprocess.run(["ldd", prefix + "/bin/tandem"], env=env, stdout=subprocess.PIPE, text=True)
        check(re.search(rf"libtandem\.so\.0 => {re.escape(prefix)}/", r.stdout), "the library that is found", r.stdout)
        pc = glob.glob(prefix + "/lib*/**/libtandem.pc", recursive=True)
        equal(len(pc), 1, "pkg-config files")
        if shutil.which("pkg-config"):
            r = subprocess.run(["pkg-config", "--variable=libdir", "libtandem"], stdout=subprocess.PIPE, text=True,
                               env=dict(env, PKG_CONFIG_PATH=os.path.dirname(pc[0])))
            equal(os.path.realpath(r.stdout.strip()), os.path.realpath(os.path.dirname(os.path.dirname(pc[0]))),
                  "libdir of libtandem.pc")
        for unit in glob.glob(prefix + "/lib/systemd/*/*.service"):
            with open(unit) as f:
                for program in re.findall(r"^Exec\w+=[-+!]*(/\S+)", f.read(), re.M):
                    check(program.startswith(prefix + "/") and os.access(program, os.X_OK) or
                          not re.search("tandem", program), "a program that a unit names", unit, program)
        # What docs/packaging.md links: all units and nothing else, or systemctl refuses the whole command.
        linked = re.search(r"^sudo systemctl link (/opt/tandem\S+)$", read("docs/packaging.md"), re.M).group(1)
        linked = subprocess.run(["bash", "-c", "echo " + linked.replace("/opt/tandem", prefix)], check=True, text=True,
                                stdout=subprocess.PIPE).stdout.split()
        equal(sorted(linked), sorted(p for p in glob.glob(prefix + "/lib/systemd/system/*") if os.path.isfile(p)),
              "the units that are linked")
        check(os.path.exists(prefix + "/etc/tandem/tandem.conf"), "configuration in the prefix")
        check(os.path.exists(prefix + "/share/doc/tandem/http-api.md"), "the page that messages of HTTP name")
        for page in glob.glob(prefix + "/share/doc/**/*.md", recursive=True):
            for target in re.findall(r"\]\(([^)#]+)", open(page).read()):
                check(re.match("https?:", target) or os.path.exists(os.path.join(os.path.dirname(page), target)),
                      "a link of an installed page", page, target)
        if shutil.which("scdoc"):
            check(os.path.exists(prefix + "/share/man/man1/tandem.1.gz"), "manual pages")
        else:
            check("no manual pages" in r_install.stderr, "it says that there are no manual pages", r_install.stderr)


@test
def the_demo_builds_what_is_installed():
    """README installs what `./bootstrap demo` built, which is the target `programs`."""
    if not shutil.which("ninja") or not os.path.exists(os.path.join(BUILD, "build.ninja")):
        raise Skip("no ninja here, or another generator's build")
    check("build release programs" in read("bootstrap"), "what the demo builds")

    def ninja(*args):
        return subprocess.run(["ninja", "-C", BUILD, "-t", *args], stdout=subprocess.PIPE, text=True, check=True,
                              timeout=120).stdout

    made = set(re.findall(r"^(\S+): ", ninja("targets", "all"), re.M))
    covered = set(re.findall(r'label="([^"]+)"', ninja("graph", "programs")))
    installed = set()
    for path in glob.glob(BUILD + "/**/cmake_install.cmake", recursive=True):
        with open(path) as f:
            for rule in re.findall(r"file\(INSTALL .*", f.read()):
                installed.update(os.path.relpath(p, BUILD) for p in re.findall(rf'"({re.escape(BUILD)}/[^"]+)"', rule))
    check({"bin/tandem", "client-lib/cli/completions/tandem.bash"} <= installed & made, "what is installed", installed)
    equal(sorted(installed & made - covered), [], "installed, and not built by the demo")


@test
def what_readme_has():
    """What a newcomer looked for and did not find; that its commands work is shown by readme-bookworm and its kind."""
    text = read("README.md")
    for what, pattern in (("a clone line", r"^git clone "), ("how to install", r"^sudo apt install \./"),
                          ("how to uninstall", r"^sudo apt purge "), ("what hardware", r"^## What it ran on"),
                          ("a model", r"tandem pull \w"), ("the configuration", r"/etc/tandem/tandem\.conf"),
                          ("a picture", r"^!\["), ("that the demo's model wanders", r"wanders off: that is its size")):
        check(re.search(pattern, text, re.M), what, pattern)
    pages = ["README.md"] + [os.path.relpath(p, TREE) for p in glob.glob(TREE + "/docs/**/*.md", recursive=True)]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)", read(page)):
            check(re.match("https?:", target) or os.path.exists(os.path.join(TREE, os.path.dirname(page), target)),
                  "a link", page, target)


@test
def the_same_version():
    v = version()
    equal(re.match(r"tandem \(([^)]*)\)", read("debian", "changelog"))[1], v + "-1", "debian/changelog")
    equal(read("debian", "changelog"), read("cmake", "debian", "changelog.in").replace("@PROJECT_VERSION@", v),
          "debian/changelog against CPack's")
    equal(re.search(r"^Version: +(.*)$", read("packaging", "tandem.spec"), re.M)[1], v, "tandem.spec")
    equal(re.search(r"^pkgver=(.*)$", read("packaging", "PKGBUILD"), re.M)[1], v, "PKGBUILD")


@test
def the_same_packages():
    """debian/control and CPack: packages, what they say of themselves and what they need to be built."""
    control, cpack = read("debian", "control"), read("cmake", "packaging.cmake")
    packages = dict(re.findall(r"^Package: (\S+)\n(?:.*\n)*?Description: (.*)$", control, re.M))
    said = dict(re.findall(r'^set\(CPACK_COMPONENT_(\w+)_DESCRIPTION "(.*)$', cpack, re.M))
    names = {"DAEMON": "tandem", "LIBRARY": "libtandem0", "DEVELOPMENT": "libtandem-dev", "XRT": "tandem-xrt",
             "MODEL": "tandem-model-tale"}
    equal(packages, {names[k]: v for k, v in said.items()}, "packages and their synopses")
    rules = read("debian", "rules")
    for component, package in names.items():
        check(f"{component.lower()}:{package}" in rules, "installed by debian/rules", package)
    needed = set(re.search(r"^BUILD_PACKAGES=\((.*?)\)", read("bootstrap"), re.M | re.S)[1].split())
    stated = set(re.findall(r"^(?:Build-Depends:)? +([\w.+-]+)(?: [\[(].*)?,?$",
                            control.split("Standards-Version")[0], re.M))
    tests_only = {"build-essential", "libcmocka-dev", "pkg-config",
                  "libjpeg62-turbo-dev", "libpng-dev", "libwebp-dev"}  # of pictures: no package has their decoder yet
    equal(sorted(needed - tests_only - stated), [], "what bootstrap installs and debian/control lacks")
    for script in ("postinst", "prerm", "postrm"):
        equal(os.path.realpath(os.path.join(TREE, "debian", "tandem." + script)),
              os.path.realpath(os.path.join(TREE, "cmake", "debian", script)), "one script for both")


@full_only
def source_package():
    for program in ("git", "dpkg-source"):
        if not shutil.which(program):
            raise Skip(f"no {program} here (Debian: git, dpkg-dev)")
    with tempfile.TemporaryDirectory() as folder:
        tree = os.path.join(folder, "tree")
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "-q", TREE, tree], check=True)
        sums = []
        for _ in range(2):
            subprocess.run(["./bootstrap", "source"], cwd=tree, check=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            made = sorted(glob.glob(tree + "/build-source/*"))
            equal([os.path.basename(p).split("_")[1] for p in made],
                  [version() + "-1.debian.tar.xz", version() + "-1.dsc", version() + ".orig.tar.gz"], "files")
            sums.append([hashlib.sha256(open(p, "rb").read()).hexdigest() for p in made])
            time.sleep(1.1)
        equal(sums[0], sums[1], "the same bytes")
        subprocess.run(["dpkg-source", "-x", made[1], folder + "/x"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        r = subprocess.run(["diff", "-rq", "--no-dereference", "-x", ".git", "-x", "build-source", "-x", ".pc", tree,
                            folder + "/x"], stdout=subprocess.PIPE, text=True)
        equal(r.stdout, "", "the tree against the unpacked source")


@test
def purge_leaves_no_link():
    """The links of units that an administrator enabled go with the package, whose scripts run here with nothing but
    deb-systemd-helper behind their commands."""
    helper = shutil.which("deb-systemd-helper")
    if not helper:
        raise Skip("no deb-systemd-helper here (Debian: init-system-helpers)")
    with tempfile.TemporaryDirectory() as folder:
        units, wants = (os.path.join(folder, d) for d in ("lib/systemd/system", "etc/systemd/system"))
        for d in ("bin", "usr/lib/systemd/system", units, wants + "/sockets.target.wants"):
            os.makedirs(os.path.join(folder, d))
        for name in ("tandemd.socket", "tandem-http.socket"):
            shutil.copy(os.path.join(TREE, "systemd/system", name), units)
        for name in re.findall(r"[a-z-]+", " ".join(read("cmake/debian", s) for s in ("postinst", "postrm"))):
            with open(os.path.join(folder, "bin", name), "w") as f:
                f.write(f'#!/bin/sh\n[ {name} != {os.path.basename(helper)} ] || exec {helper} "$@"\n')
            os.chmod(f.name, 0o755)
        env = {"PATH": os.path.join(folder, "bin"), "DPKG_ROOT": folder, "DPKG_MAINTSCRIPT_PACKAGE": "tandem"}
        for script, args in (("postinst", ["configure", ""]), ("postrm", ["remove"]), ("postrm", ["purge"])):
            if script == "postrm" and args == ["remove"]:
                for name in ("tandemd.socket", "tandem-http.socket"):
                    link = os.path.join(wants, "sockets.target.wants", name)
                    if not os.path.islink(link):
                        os.symlink("/lib/systemd/system/" + name, link)
                    os.unlink(os.path.join(units, name))
            r = subprocess.run(["/bin/sh", os.path.join(TREE, "cmake/debian", script), *args], env=env, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            equal(r.returncode, 0, f"{script} {args}: {r.stdout}")
        left = [os.path.join(d, n) for d, _, names in os.walk(wants) for n in names]
        equal(left, [], "links that purge leaves")


main()
