/** An Idempotency-Key for a request that creates something. Browsers have randomUUID only in secure contexts (TLS). */
export function newIdempotencyKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
