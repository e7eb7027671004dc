/** An Idempotency-Key for one request that makes something. Browsers have randomUUID only for pages that came over TLS. */
export function freshKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
