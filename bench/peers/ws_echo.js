// An echo server on node's ws: node ws_echo.js PORT
const { WebSocketServer } = require("/usr/share/nodejs/ws");
const server = new WebSocketServer({ host: "127.0.0.1", port: Number(process.argv[2]), perMessageDeflate: false });
server.on("connection", (socket) => socket.on("message", (data, binary) => socket.send(data, { binary })));
