#!/usr/bin/env python3
"""Says what of other people is in the library, from Cargo.lock: an SBOM (SPDX 2.3, JSON) and the texts of all licences.

    third_party.py TARGET_TRIPLE DIRECTORY

writes rie.spdx.json and THIRD-PARTY-LICENSES.txt. A crate without a licence, or without its text, is an error.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LICENSE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(metadata):
    """The packages whose code is linked in, our own first. Procedural macros and build scripts only run at build time."""
    packages = {p["id"]: p for p in metadata["packages"]}
    nodes = {n["id"]: n for n in metadata["resolve"]["nodes"]}
    found, queue = {}, [metadata["resolve"]["root"]]
    while queue:
        package = packages[queue.pop(0)]
        if package["id"] in found or any("proc-macro" in t["kind"] for t in package["targets"]):
            continue
        found[package["id"]] = package
        queue += sorted(d["pkg"] for d in nodes[package["id"]]["deps"] if any(k["kind"] is None for k in d["dep_kinds"]))
    own, *others = found.values()
    return [own, *sorted(others, key=lambda p: (p["name"], p["version"]))]


def license_of(package):
    if not package["license"]:
        sys.exit(f"{package['name']} {package['version']} states no licence")
    return re.sub(r" ?/ ?", " OR ", package["license"])  # Cargo's old way of writing it


def license_texts(package):
    directory = pathlib.Path(package["manifest_path"]).parent
    texts = [f.read_text(errors="replace").strip() for f in sorted(directory.iterdir())
             if f.is_file() and LICENSE_FILE.match(f.name)]
    if not texts:
        sys.exit(f"{package['name']} {package['version']} comes without the text of its licence")
    return texts


def licenses(packages):
    """Each text once, after the crates that it is for."""
    users = {}
    for package in packages:
        for text in license_texts(package):
            users.setdefault(text, []).append(f"{package['name']} {package['version']} ({license_of(package)})")
    rule = "=" * 78
    return "\n\n".join(f"{rule}\n" + "\n".join(names) + f"\n{rule}\n\n{text}" for text, names in users.items()) + "\n"


def sbom(packages, checksums, rustc):
    own = packages[0]

    def spdx_id(package):
        return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{package['name']}-{package['version']}")

    def entry(package):
        name, version = package["name"], package["version"]
        checksum = checksums.get((name, version))
        source = f"https://crates.io/api/v1/crates/{name}/{version}/download" if checksum else "NOASSERTION"
        result = {
            "SPDXID": spdx_id(package), "name": name, "versionInfo": version, "downloadLocation": source,
            "filesAnalyzed": False, "licenseDeclared": license_of(package), "licenseConcluded": license_of(package),
            "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:cargo/{name}@{version}"}],
        }
        if checksum:
            result["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
        return result

    standard_library = {"name": "rust-std", "version": rustc, "license": "MIT OR Apache-2.0"}
    parts = [*packages[1:], standard_library]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", own)] + [(spdx_id(own), "CONTAINS", part) for part in parts]
    entries = [entry(package) for package in [own, *parts]]
    entries[-1]["downloadLocation"] = "https://static.rust-lang.org/dist/"
    del entries[-1]["externalRefs"]
    # The same sources give the same file: the time is that of the commit, unless the packager sets it.
    created = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"rie-{own['version']}",
        "documentNamespace": f"https://spdx.org/spdxdocs/rie-{own['version']}-{created}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
                         "creators": ["Tool: rie-third_party.py"]},
        "packages": entries,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": spdx_id(b)}
                          for a, kind, b in relations],
    }


def main(target, directory):
    metadata = json.loads(output("cargo", "metadata", "--locked", "--format-version=1", "--filter-platform", target))
    packages = linked(metadata)
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p}
    rustc = re.search(r"^release: (.*)$", output("rustc", "-vV"), re.MULTILINE)[1]
    directory = pathlib.Path(directory)
    (directory / "THIRD-PARTY-LICENSES.txt").write_text(licenses(packages[1:]))
    (directory / "rie.spdx.json").write_text(json.dumps(sbom(packages, checksums, rustc), indent=1) + "\n")


main(*sys.argv[1:])
