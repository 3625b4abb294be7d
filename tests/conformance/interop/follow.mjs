// Follows a JSON stream live with the official client until the stream is closed, over anything
// that happens to the line: where the client gives up, it goes on from the last offset it was told.
// Usage: node follow.mjs URL long-poll|sse
// Prints a line of JSON for every batch: {"items": […]}, and {"sessions": n} at the end.
import { stream } from "@durable-streams/client"

const [url, live] = process.argv.slice(2)
const backoffOptions = { initialDelay: 20, maxDelay: 200, multiplier: 1.3 }
let offset = "-1"
let sessions = 0
let isClosed = false

while (!isClosed) {
  sessions += 1
  try {
    const response = await stream({ url, offset, live, json: true, backoffOptions })
    response.subscribeJson((batch) => {
      if (batch.items.length > 0) console.log(JSON.stringify({ items: batch.items }))
      offset = batch.offset
    })
    await response.closed
    isClosed = response.streamClosed
  } catch (error) {
    console.error(`session ${sessions}: ${error}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
console.log(JSON.stringify({ sessions }))
