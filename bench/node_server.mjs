// Starts the Durable Streams reference server from npm: it is a library without a command.
// node node_server.mjs NODE_MODULES DATA_FOLDER PORT
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, dataDir, port] = process.argv.slice(2);
const resolve = createRequire(pathToFileURL(`${modules}/`)).resolve;
const { DurableStreamTestServer } = await import(pathToFileURL(resolve("@durable-streams/server")));
// The bodies are not worth packing on loopback; no other server here does it.
const server = new DurableStreamTestServer({ port: Number(port), host: "127.0.0.1", dataDir, compression: false });
await server.start();
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => server.stop().then(() => process.exit(0)));
