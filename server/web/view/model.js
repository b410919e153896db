// Which model answers, and how good it claims to be.

/** `{id, quality}` of the server's first model; null where it cannot be asked (no server, or a key is needed). */
export async function loadModel(key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(new URL("v1/models", document.baseURI), { headers }).catch(() => null);
  if (!answer?.ok) return null;
  const { data } = await answer.json();
  if (data.length === 0) return null;
  return { id: data[0].id, quality: data[0].metronome?.quality ?? null };
}
