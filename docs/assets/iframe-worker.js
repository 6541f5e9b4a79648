/* The search runs in a Web Worker, which browsers refuse to pages that are opened from a folder. There, run
   the same script in a hidden frame: it gets the messages of the page, and the page gets its answers. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const url = new URL(address, document.baseURI).href;
      this.inside = new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.src = url;
          script.onload = () => resolve(inside);
          inside.document.body.append(script);
        };
        document.body.append(frame);
      });
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
