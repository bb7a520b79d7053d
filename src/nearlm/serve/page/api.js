// The server: requests, streams, the key, and errors in one line.

import { find } from "./dom.js";

const KEY = "nearlm-key";

export class ApiError extends Error {}

/** Ask the server; return its JSON. */
export async function ask(path, { body, signal } = {}) {
  const response = await send(path, body, signal);
  try {
    return await response.json();
  } catch (error) {
    throw readable(error);
  }
}

/** Ask for a stream of server-sent events; yield the JSON of each. */
export async function* stream(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  let complete = false;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      const lines = (pending + (value ?? "")).split(/\r?\n/);
      pending = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        complete ||= data === "[DONE]";
        if (complete) continue; // read on to the end, or the browser drops the connection
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message);
        yield event;
      }
      if (done && complete) return;
      if (done) throw new ApiError("The server stopped before the text was complete.");
    }
  } catch (error) {
    throw readable(error);
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function send(path, body, signal) {
  for (let asked = false; ; asked = true) {
    const response = await once(path, body, signal);
    if (response.ok) return response;
    if (response.status !== 401) throw new ApiError(await complaint(response));
    const key = await askForKey(asked || sessionStorage.getItem(KEY) != null);
    if (!key) throw new ApiError("The server needs an API key (the one that `nearlm serve --api-key-file` was given).");
    sessionStorage.setItem(KEY, key);
  }
}

async function once(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    throw readable(error);
  }
}

/** What an error response says, in one line. */
async function complaint(response) {
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    message = response.statusText || "no reason was given";
  }
  const busy = response.status === 429 || response.status === 503;
  return busy ? `The server is busy: ${message}` : `${message} (error ${response.status})`;
}

/** Turn what fetch throws into a sentence; an abort stays what it is. */
function readable(error) {
  if (error.name === "AbortError" || error instanceof ApiError) return error;
  if (error instanceof SyntaxError) return new ApiError("The server sent something that is not JSON. Is this nearlm?");
  return new ApiError("The server does not answer. Is `nearlm serve` still running?");
}

let asking = null; // one dialog for all requests that wait for a key

function askForKey(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = find("key-dialog");
    find("key-title").textContent = refused ? "That key was refused" : "This server needs a key";
    find("key").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      resolve(dialog.returnValue === "ok" ? find("key").value.trim() : "");
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
