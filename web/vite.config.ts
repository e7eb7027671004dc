import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";
import { compression, defineAlgorithm } from "vite-plugin-compression2";

const api = process.env.TRAINMASTER_API_URL ?? "http://127.0.0.1:8765";

export default defineConfig({
  plugins: [
    react(),
    // Compressed once at build time, as small as possible: the API serves the files unchanged.
    compression({
      include: /assets\/.*\.(js|css|svg)$/,
      threshold: 1000,
      algorithms: [defineAlgorithm("brotliCompress", { params: {} }), defineAlgorithm("gzip", { level: 9 })],
    }),
  ],
  resolve: { alias: { "~": fileURLToPath(new URL("./src", import.meta.url)) } },
  build: {
    target: "es2022",
    // No data: URLs and no inline scripts: the content security policy allows neither.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 600,
  },
  server: { proxy: { "/api": api, "/openapi.json": api } },
});
