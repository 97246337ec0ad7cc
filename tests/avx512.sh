#!/usr/bin/env bash
# Runs the tests of kernels, panels and the forward pass on a CPU with AVX-512: this one if it can, else one that Bochs emulates
# (QEMU's emulation ends with AVX2): a Debian kernel starts, and all it does is run the test programs, at some 30 million
# instructions a second. `avx512.sh tools` installs what that needs, and no more; `avx512.sh emulated` takes Bochs in any case.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/tools.sh
. tests/tools.sh

tests=(kernels panels golden)
if [ "${1-}" != emulated ] && python3 -c '
flags = open("/proc/cpuinfo").read().split()
raise SystemExit(not {"avx512f", "avx512dq", "avx512vl", "avx512_vnni"} <= set(flags))'; then
    [ "${1-}" = tools ] || RIE_TEST_TIER=avx512 cargo test --quiet "${tests[@]/#/--test=}" --features faults
    exit
fi

work=target/avx512
mkdir -p "$work"
need bochs:bochs script:bsdutils xorriso:xorriso cpio:cpio strip:binutils python3:python3 busybox:busybox-static
[ -f /usr/lib/ISOLINUX/isolinux.bin ] || install isolinux syslinux-common
compgen -G "/usr/lib/*/bochs/plugins/libbx_term_gui.so" >/dev/null || install bochs-term
[ -f /usr/share/vgabios/vgabios.bin ] || install vgabios bochsbios
if ldd "$(command -v busybox)" >/dev/null 2>&1; then install busybox-static; fi # not one that needs libraries
if [ ! -f "$work/vmlinuz" ]; then
    # Unpacked only.
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" { print $2; exit }')
    rm -rf "$work/kernel" && mkdir "$work/kernel"
    (cd "$work/kernel" && apt-get download -qq "$package" && dpkg-deb -x "$package"_*.deb .)
    mv "$work"/kernel/boot/vmlinuz-* "$work/vmlinuz"
    rm -rf "$work/kernel"
fi
[ "${1-}" != tools ] || exit 0

rm -rf "$work/root" "$work/disc" "$work/serial"
mkdir -p "$work/root"/{bin,proc} "$work/disc/isolinux"
cp "$work/vmlinuz" "$work/disc/isolinux/vmlinuz"

# The test programs with the libraries they need, and the checkpoints where the programs look for them.
cargo test --quiet --no-run "${tests[@]/#/--test=}" --features faults --message-format=json | python3 -c '
import json, sys
for line in sys.stdin:
    artifact = json.loads(line)
    if artifact.get("executable"):
        print(artifact["target"]["name"], artifact["executable"])' >"$work/programs"
while read -r name program; do
    strip -o "$work/root/bin/$name" "$program"
    ldd "$program" | grep -o '/[^ ]*' | sort -u | xargs -I{} cp --parents -L {} "$work/root"
done <"$work/programs"
[ "$(wc -l <"$work/programs")" -eq "${#tests[@]}" ]
cp --parents -r "$PWD/tests/golden/cases" "$work/root"
cp "$(command -v busybox)" "$work/root/bin/busybox"
cat >"$work/root/init" <<'END'
#!/bin/busybox sh
busybox() { /bin/busybox "$@"; }
export PATH=/bin RIE_TEST_TIER=avx512 RUST_TEST_THREADS=1
busybox mount -t proc proc /proc
# Left out: a minute of scales tried one by one, and more threads than the machine has.
kernels && panels --skip weights_are_as_close_as_the_format_allows &&
    golden half_precision every_intermediate in_every_tier && busybox echo ALL PASSED
busybox sleep 2 # until the serial line has sent all
busybox poweroff -f
END
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/disc/isolinux/initrd"

# A start-up disc. Bochs 2.7 lays out some registers of the newest features in ways that this kernel stumbles over: it is told to
# leave them alone.
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/disc/isolinux"
without=aperfmperf,pku,ospke,umip,erms,fsrm,rdpid,clwb,clflushopt,xsavec,xsaveopt,xgetbv1,rdrand,rdseed,pcid,invpcid,smap,smep
cat >"$work/disc/isolinux/isolinux.cfg" <<END
default tests
prompt 0
timeout 1
label tests
 kernel vmlinuz
 append initrd=initrd console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable lpj=1000000 noxsaves clearcpuid=$without,la57,tsc_deadline_timer,x2apic
END
xorriso -as mkisofs -quiet -o "$work/disc.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot \
    -boot-load-size 4 -boot-info-table "$work/disc" 2>/dev/null

cat >"$work/bochsrc" <<END
cpu: model=tigerlake, ips=200000000
megs: 512
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
display_library: term
ata0-master: type=cdrom, path=$work/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
log: $work/log
clock: sync=none
# Without a sound card its mixer's thread overruns a buffer.
sound: driver=dummy
speaker: enabled=0
END
echo continue >"$work/commands"
# A screen it must have: a terminal that nobody sees. Turning the machine off is a "panic" for it, so its status says nothing.
emulate() {
    rm -f "$work/serial"
    TERM=xterm timeout 900 script -qec "bochs -q -f $work/bochsrc -rc $work/commands" /dev/null </dev/null >"$work/output" 2>&1 &
    emulator=$!
    wait "$emulator" || true
    [ -s "$work/serial" ] || tail "$work/output" "$work/log"
}
trap 'kill "$emulator" 2>/dev/null || true' EXIT
emulate
if ! grep -qs -e "^ALL PASSED" -e "FAILED" "$work/serial"; then
    echo "the emulator ended or stood still: once more"
    tail "$work/output" "$work/serial"
    emulate
fi
cat "$work/serial"
grep -q "^ALL PASSED" "$work/serial"
for passed in "8 passed" "7 passed" "3 passed"; do # of each program; a name that no test has would pass by itself
    grep -q "test result: ok. $passed" "$work/serial"
done
