# What the scripts of this folder share. To be sourced by a POSIX sh with `root` set to the checkout.
# Everything is idempotent: what is there already is left alone.
# shellcheck shell=sh
: "${root:?}"

say() { printf '==> %s\n' "$*"; }
die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# quietly LOG COMMAND...: shows the command's output only when it fails.
quietly() {
    quietly_log=$1
    shift
    if ! "$@" >"$quietly_log" 2>&1 </dev/null; then
        grep -v '^\[[0-9]*/[0-9]*\]' "$quietly_log" >&2 || true # not Ninja's progress
        die "failed: $*"
    fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        die "need root to run: $* (run that as root, then this script again)"
    fi
}

# install_packages PACKAGE...: with apt-get, or says what to install where there is none.
install_packages() {
    if ! command -v apt-get >/dev/null 2>&1; then
        die "missing: $* (Debian's names). There is no apt-get here: install their equivalents with
this system's package manager (Meson 1.0 or newer, Ninja, a C11 and C++17 compiler, pkg-config,
Python 3, Criterion 2.4, xxHash with headers), then run this script again."
    fi
    say "installing $* (apt-get)"
    mkdir -p "$root/.deps"
    # Stale or absent package lists are the usual reason for a failure: refresh and try once more.
    if ! apt_install "$@"; then
        quietly "$root/.deps/apt.log" as_root apt-get -q update
        quietly "$root/.deps/apt.log" apt_install "$@"
    fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@" \
        >"$root/.deps/apt-install.log" 2>&1 </dev/null || {
        cat "$root/.deps/apt-install.log"
        return 1
    }
}

# --- packages -------------------------------------------------------------------------------------

compiles() { echo 'int main(void) { return 0; }' | "$@" -o /dev/null - >/dev/null 2>&1; }
has_package() { command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$1"; }

setup_packages() {
    missing=
    command -v python3 >/dev/null 2>&1 || missing="$missing python3"
    command -v meson >/dev/null 2>&1 || missing="$missing meson"
    command -v ninja >/dev/null 2>&1 || missing="$missing ninja-build"
    compiles "${CC:-cc}" -x c || missing="$missing gcc libc6-dev"
    compiles "${CXX:-c++}" -x c++ || missing="$missing g++"
    command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
    has_package criterion || missing="$missing libcriterion-dev"
    has_package libxxhash || missing="$missing libxxhash-dev"
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086 # one word per package
        install_packages $missing
    fi
    setup_meson
}

# Sources of a locale with decimal commas, without which the tests of that are skipped.
setup_locales() {
    if command -v apt-get >/dev/null 2>&1 && [ ! -e /usr/share/i18n/locales/de_DE ]; then
        install_packages locales
    fi
}

# Older distributions carry a Meson that is too old; then one from PyPI is put beside the checkout.
setup_meson() {
    if python3 - "$(meson --version)" <<'PYTHON'; then
import sys
sys.exit(tuple(int(n) for n in sys.argv[1].split(".")[:2]) < (1, 0))
PYTHON
        return
    fi
    if [ ! -x "$root/.deps/meson/bin/meson" ]; then
        say "Meson $(meson --version) is older than 1.0: fetching a newer one into .deps/ (pip)"
        pip_into meson 'meson>=1.0'
    fi
    export PYTHONPATH="$root/.deps/meson${PYTHONPATH:+:$PYTHONPATH}"
    export PATH="$root/.deps/meson/bin:$PATH"
}

# pip_into FOLDER REQUIREMENT...: unpacks wheels into .deps/FOLDER, whole or not at all.
pip_into() {
    folder=$1
    shift
    pip_python=
    for candidate in python3 /usr/bin/python3; do
        if "$candidate" -m pip --version >/dev/null 2>&1; then
            pip_python=$candidate
            break
        fi
    done
    if [ -z "$pip_python" ]; then
        install_packages python3-pip
        pip_python=/usr/bin/python3
    fi
    mkdir -p "$root/.deps"
    rm -rf "$root/.deps/$folder.new"
    # --target is left alone by the rule that keeps pip off a distribution's own Python.
    quietly "$root/.deps/pip.log" env PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
        "$pip_python" -m pip install --no-input --no-deps --only-binary=:all: --no-compile \
        --target "$root/.deps/$folder.new" "$@"
    rm -rf "${root:?}/.deps/$folder"
    mv "$root/.deps/$folder.new" "$root/.deps/$folder"
}

# --- CUDA -----------------------------------------------------------------------------------------

find_cuda() { python3 "$root/tools/find_cuda.py" "$@"; }

# The wheels' suffix: that of CUDA 12 where the driver is too old for cubins of CUDA 13.
wheel_suffix() {
    driver=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\)\..*/\1/p' | head -n 1)
    if [ "$driver" = 12 ]; then
        echo -cu12
    fi
}

# Sets cuda_root (what holds the headers) and exports FAJIT_NVRTC_LIBRARY, unless the caller did.
setup_cuda() {
    nvrtc_named=${FAJIT_NVRTC_LIBRARY:-}
    cuda_root=$(find_cuda --print root 2>/dev/null) || cuda_root=
    nvrtc=
    if [ -n "$cuda_root" ]; then
        nvrtc=$(find_cuda --print nvrtc)
    fi
    if [ -z "$cuda_root" ] || { [ -z "$nvrtc" ] && [ -z "${FAJIT_NVRTC_LIBRARY:-}" ]; }; then
        suffix=$(wheel_suffix)
        say "no CUDA headers or no NVRTC here: fetching nvidia-cuda-nvrtc$suffix and" \
            "nvidia-cuda-runtime$suffix into .deps/ (pip, about 60 MB)"
        pip_into cuda "nvidia-cuda-nvrtc$suffix" "nvidia-cuda-runtime$suffix"
        cuda_root=$root/.deps/cuda
        nvrtc=$(find_cuda --root "$cuda_root" --print nvrtc)
    fi
    say "CUDA headers of $cuda_root, NVRTC ${FAJIT_NVRTC_LIBRARY:-$nvrtc}"
    export FAJIT_NVRTC_LIBRARY="${FAJIT_NVRTC_LIBRARY:-$nvrtc}"
}

# What a shell has to be told where NVRTC is one of .deps/: the library looks in no checkout.
show_nvrtc() {
    if [ -n "$nvrtc_named" ]; then
        return
    fi
    case $FAJIT_NVRTC_LIBRARY in
    "$root"/.deps/*)
        say "build/fajit and programs of your own find this NVRTC with"
        printf "    export FAJIT_NVRTC_LIBRARY='%s'\n" "$FAJIT_NVRTC_LIBRARY"
        ;;
    esac
}

# --- build ----------------------------------------------------------------------------------------

# setup_build [FOLDER [MESON_OPTION]...]: configures when needed, then builds.
setup_build() {
    build=$root/${1:-build}
    [ $# -eq 0 ] || shift
    say "building in ${build#"$root"/}/"
    mkdir -p "$build"
    if [ ! -f "$build/build.ninja" ]; then
        quietly "$build/setup.log" meson setup "$build" "$root" -Dcuda-root="$cuda_root" "$@"
    elif ! meson setup --reconfigure "$build" "$root" -Dcuda-root="$cuda_root" "$@" \
        >"$build/setup.log" 2>&1 </dev/null; then
        say "its configuration is of no use here any more: starting it afresh"
        quietly "$build.setup.log" meson setup --wipe "$build" "$root" -Dcuda-root="$cuda_root" "$@"
        mv "$build.setup.log" "$build/setup.log"
    fi
    quietly "$build/build.log" ninja -C "$build"
    # Warnings of a build that went well are still worth a look.
    grep -E 'warning:' "$build/build.log" >&2 || true
}
