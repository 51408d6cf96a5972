// Unpacks the Chromium of @sparticuz/chromium: its program, the libraries that a bare machine lacks, and fonts.
//
//     node unpack.mjs     # in the folder that has node_modules
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { brotliDecompressSync } from "node:zlib";

const unpacked = (name) => brotliDecompressSync(readFileSync(`node_modules/@sparticuz/chromium/bin/${name}.br`));

writeFileSync("chromium", unpacked("chromium"), { mode: 0o755 });
for (const archive of ["al2023.tar", "fonts.tar"])
  execFileSync("tar", ["-x", "--no-same-owner"], { input: unpacked(archive) });
writeFileSync(
  "fonts.conf",  // theirs names folders of a server
  `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<dir>${process.cwd()}/fonts</dir><cachedir>${process.cwd()}/fonts</cachedir></fontconfig>`,
);
