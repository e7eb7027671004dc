import { ApiError, api, unwrap, type Problem, send } from "./client";
import type { components } from "./schema.gen";

type ArchiveView = components["schemas"]["ArchiveView"];

const PIECE = 4 * 2 ** 20; // bytes of one request
const TRIES = 5;

/** Uploads an archive, or the part that the API does not have yet. `onProgress`: bytes received so far. */
export async function uploadArchive(blob: Blob, digest: string, onProgress: (bytes: number) => void): Promise<void> {
  let view = await unwrap(api.POST("/api/v1/archives", { params: { query: { digest, size: blob.size } } }));
  for (let tries = 0; !view.is_complete;) {
    onProgress(view.received_bytes);
    try {
      const from = view.received_bytes;
      view = await append(digest, from, blob.slice(from, from + PIECE));
      tries = 0;
    } catch (error) {
      tries += 1;
      if (tries >= TRIES || (error instanceof ApiError && error.status < 500 && error.status !== 409)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * tries));
      view = await unwrap(api.GET("/api/v1/archives/{digest}", { params: { path: { digest } } }));
    }
  }
}

async function append(digest: string, offset: number, piece: Blob): Promise<ArchiveView> {
  const answer = await send(`/api/v1/archives/${digest}?offset=${offset}`, {
    method: "PUT",
    headers: { "Content-Type": "application/octet-stream" },
    body: piece,
  });
  const body = (await answer.json()) as unknown;
  if (!answer.ok) throw new ApiError(answer.status, body as Partial<Problem>);
  return body as ArchiveView;
}
