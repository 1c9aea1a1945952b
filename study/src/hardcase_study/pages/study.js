"use strict";
(() => {
  const form = document.getElementById("form");
  const status = document.getElementById("status");
  const next = document.getElementById("next");
  const list = document.getElementById("order");
  const name = "study-" + form.dataset.item;
  const csrf = form.elements.csrf.value;

  // Time in front of the images: starts when they are drawn, pauses while the page is hidden or
  // out of focus, and survives a refresh.
  let kept = { seconds: 0, hidden: 0, lost: 0 };
  try { kept = Object.assign(kept, JSON.parse(sessionStorage.getItem(name) || "{}")); } catch (_) { /* private mode */ }
  let started = null;
  let away = null;
  const away_now = () => document.hidden || !document.hasFocus();
  const keep = () => {
    try { sessionStorage.setItem(name, JSON.stringify(measured())); } catch (_) { /* private mode */ }
  };
  const measured = () => {
    const now = performance.now();
    return {
      seconds: kept.seconds + (started === null ? 0 : (now - started) / 1000),
      hidden: kept.hidden + (away === null ? 0 : (now - away) / 1000),
      lost: kept.lost,
    };
  };
  const leave = () => {
    if (away !== null) return;
    kept = measured();
    kept.lost += 1;
    started = null;
    away = performance.now();
  };
  const back = () => {
    if (away === null || away_now()) return;
    kept = measured();
    away = null;
    started = performance.now();
  };
  const seen = Promise.allSettled([...document.images].map((image) => image.decode()));
  seen.then(() => {
    if (away_now()) { away = performance.now(); } else { started = performance.now(); }
  });
  document.addEventListener("visibilitychange", () => (away_now() ? leave() : back()));
  window.addEventListener("blur", leave);
  window.addEventListener("focus", back);
  window.addEventListener("pagehide", keep);
  // A page that the back button brings back as it was left knows nothing of its stored answer.
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

  // The order of images: drag, arrow keys, buttons.
  const cards = () => [...list.children];
  const number = () => cards().forEach((card, i) => { card.querySelector(".place").textContent = i + 1; });
  const tell = (card) => {
    const text = form.dataset.moved.replace("{letter}", card.dataset.letter)
      .replace("{place}", cards().indexOf(card) + 1).replace("{all}", list.children.length);
    status.textContent = text;
  };
  const move = (card, step) => {
    const all = cards();
    const to = all.indexOf(card) + step;
    if (to < 0 || to >= all.length) return;
    list.insertBefore(card, step < 0 ? all[to] : all[to].nextSibling);
    number();
    tell(card);
  };
  if (list) {
    list.addEventListener("click", (event) => {
      const button = event.target.closest(".move");
      if (!button) return;
      move(button.closest(".card"), Number(button.dataset.step));
      button.focus();
    });
    list.addEventListener("keydown", (event) => {
      const handle = event.target.closest(".handle");
      const step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
      if (!handle || !step) return;
      event.preventDefault();
      move(handle.closest(".card"), step);
      handle.focus();
    });
    let held = null;
    list.addEventListener("pointerdown", (event) => {
      const handle = event.target.closest(".handle");
      if (!handle || event.button !== 0) return;
      held = handle.closest(".card");
      held.classList.add("held");
      handle.setPointerCapture(event.pointerId);
    });
    list.addEventListener("pointermove", (event) => {
      if (!held) return;
      const under = document.elementsFromPoint(event.clientX, event.clientY)
        .map((one) => one.closest(".card")).find((card) => card && card !== held);
      if (!under) return;
      const all = cards();
      list.insertBefore(held, all.indexOf(under) < all.indexOf(held) ? under : under.nextSibling);
      number();
    });
    const drop = () => {
      if (held) { held.classList.remove("held"); tell(held); }
      held = null;
    };
    list.addEventListener("pointerup", drop);
    list.addEventListener("pointercancel", drop);
  }

  // Keys: the one beside an answer chooses it; with two questions the first open one is meant.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.id === "link") return;
    if (event.key === "Enter" && !event.target.closest("button, a")) {
      event.preventDefault();
      form.requestSubmit();
      return;
    }
    const key = event.key.toLowerCase();
    const fitting = [...form.querySelectorAll("input[data-key]")].filter((one) => one.dataset.key === key);
    const open = fitting.find((one) => !form.querySelector(`input[name="${one.name}"]:checked`));
    const choice = open || fitting.find((one) => document.activeElement && document.activeElement.name === one.name)
      || fitting[fitting.length - 1];
    if (!choice) return;
    event.preventDefault();
    choice.checked = true;
    choice.focus();
  });

  // Sending: the next page comes when the answer is stored. Without a connection it is tried again.
  const value = () => {
    const found = {};
    form.querySelectorAll("input[type=radio]:checked").forEach((one) => { found[one.name] = one.value; });
    if (list) found[list.dataset.name] = cards().map((card) => card.dataset.id);
    return found;
  };
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  let sending = false;
  const send = async () => {
    if (sending) return;
    sending = true;
    next.disabled = true;
    status.textContent = form.dataset.saving;
    const time = measured();
    const body = JSON.stringify({
      csrf, item: form.dataset.item, key: form.elements.key.value, value: value(),
      revise: form.elements.revise.value === "yes", seconds: time.seconds, hidden: time.hidden, lost: time.lost,
    });
    for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
      try {
        const answer = await fetch(location.pathname, { method: "POST", body, headers: { "Content-Type": "application/json" } });
        if (answer.ok || answer.status === 409) {
          const told = await answer.json();
          try { sessionStorage.removeItem(name); } catch (_) { /* private mode */ }
          if (told.state === "kept" || told.state === "elsewhere") {
            status.textContent = form.dataset.elsewhere;
            await pause(1500);
          }
          window.removeEventListener("pagehide", keep);
          location.assign(told.next);
          return;
        }
        if (answer.status === 400) {
          status.textContent = form.dataset.incomplete;
          break;
        }
        if (answer.status === 403 || answer.status === 404) { location.reload(); return; }
      } catch (_) { /* no connection */ }
      status.textContent = form.dataset.offline;
      await pause(wait);
    }
    sending = false;
    next.disabled = false;
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });

  const link = document.getElementById("link");
  const copy = document.getElementById("copy");
  if (link) {
    link.value = location.origin + link.value;
    if (navigator.clipboard) {
      copy.hidden = false;
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(link.value);
        copy.textContent = copy.dataset.done;
      });
    }
  }
})();
