// One request at a time: a new one stops the one before.

export class Run {
  /** Run work that can be stopped; `onState(running)` follows it and `onError(error)` hears what went wrong. */
  constructor({ onState, onError }) {
    this.onState = onState;
    this.onError = onError;
    this.controller = null;
  }

  get running() {
    return this.controller !== null;
  }

  stop() {
    this.controller?.abort();
  }

  /** Stop what runs and start `work(signal)`. */
  async start(work) {
    this.stop();
    const controller = new AbortController();
    this.controller = controller;
    this.onState(true);
    try {
      await work(controller.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.onError(error);
    } finally {
      if (this.controller === controller) {
        this.controller = null;
        this.onState(false);
      }
    }
  }
}
