// Where require.js finds the widget scripts: beside itself, never on another host.
requirejs.config({ baseUrl: new URL("../vendor/", document.currentScript.src).href });
