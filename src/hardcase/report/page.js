"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // A number of the matrix filters the gallery of its run; the clear button undoes it and returns to that number.
  const filters = (run) => {
    const status = run.querySelector(".filter p");
    const clear = run.querySelector(".clear");
    if (!status || !clear) return;
    const cells = all(".cell", run);
    const tests = all(".gallery li", run);
    const nothing = run.querySelector(".nothing");
    const wording = status.textContent;
    const verdicts = run.querySelector("select.verdicts");
    const more = run.querySelector(".all");
    const FIRST = 24; // failures that are shown before somebody asks for all
    let chosen = null;
    let whole = tests.length <= FIRST;

    const show = (cell) => {
      chosen = cell;
      const same = (other) =>
        other.dataset.expected === cell.dataset.expected && other.dataset.predicted === cell.dataset.predicted;
      const fits = (item) =>
        (!verdicts?.value || item.dataset.verdict === verdicts.value) &&
        (!cell ||
          (item.dataset.kind === "label" &&
            item.dataset.expected === cell.dataset.expected &&
            (cell.dataset.predicted === undefined || item.dataset.predicted === cell.dataset.predicted)));
      const fitting = tests.filter(fits);
      const few = !cell && !verdicts?.value && !whole;
      // a few from every part of the gallery, so that all classes are seen
      const first = few ? fitting.filter((_, i) => Math.floor((i * FIRST) / fitting.length) !== Math.floor(((i - 1) * FIRST) / fitting.length)) : fitting;
      const kept = new Set(first);
      for (const item of tests) item.hidden = !kept.has(item);
      const shown = fitting.length;
      more.hidden = !few;
      for (const other of cells) other.setAttribute("aria-pressed", String(Boolean(cell && same(other))));
      clear.hidden = !cell;
      nothing.hidden = shown > 0;
      status.textContent = cell ? `${cell.dataset.words}: ${shown} of ${cell.dataset.total} failures shown.` : wording;
    };

    for (const cell of cells) {
      cell.addEventListener("click", () => {
        if (cell.getAttribute("aria-pressed") === "true") return show(null);
        show(cell);
        run.querySelector(".gallery-section").scrollIntoView();
        clear.focus({ preventScroll: true });
      });
    }
    verdicts?.addEventListener("change", () => show(chosen));
    more.addEventListener("click", () => {
      whole = true;
      show(chosen);
      run.querySelector(".gallery li:not([hidden])").scrollIntoView({ block: "nearest" });
    });
    show(null);
    clear.addEventListener("click", () => {
      const back = chosen;
      show(null);
      if (back) back.focus();
    });
  };

  // Arrow keys move between the numbers of the matrix.
  const arrows = (matrix) => {
    const place = (cell) => [cell.closest("tr").rowIndex, cell.closest("td").cellIndex];
    const turns = { ArrowLeft: [1, -1], ArrowRight: [1, 1], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    matrix.addEventListener("keydown", (event) => {
      const turn = turns[event.key];
      const here = event.target.closest(".cell");
      if (!turn || !here) return;
      const [axis, sign] = turn;
      const from = place(here);
      const ahead = all(".cell", matrix)
        .map((cell) => [cell, place(cell)])
        .filter(([, at]) => at[1 - axis] === from[1 - axis] && sign * (at[axis] - from[axis]) > 0)
        .sort(([, a], [, b]) => sign * (a[axis] - b[axis]));
      if (ahead.length) ahead[0][0].focus();
      event.preventDefault();
    });
  };

  // Several runs become tabs; without this script they simply follow each other.
  const tabs = (bar) => {
    const links = all("a", bar);
    const panels = links.map((link) => document.querySelector(link.getAttribute("href")));
    bar.setAttribute("role", "tablist");
    links.forEach((link, i) => {
      link.setAttribute("role", "tab");
      link.id = `tab-${i + 1}`;
      link.setAttribute("aria-controls", panels[i].id);
      panels[i].setAttribute("role", "tabpanel");
    });
    const open = (chosen) =>
      links.forEach((link, i) => {
        link.setAttribute("aria-selected", String(i === chosen));
        link.tabIndex = i === chosen ? 0 : -1;
        panels[i].hidden = i !== chosen;
      });
    links.forEach((link, i) => {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        open(i);
        history.replaceState(null, "", link.getAttribute("href"));
      });
      link.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = (i + step + links.length) % links.length;
        open(next);
        links[next].focus();
        event.preventDefault();
      });
    });
    const follow = (hash) => {
      const target = hash.length > 1 && document.getElementById(hash.slice(1));
      const wanted = target ? panels.findIndex((panel) => panel.contains(target)) : -1;
      if (wanted >= 0) open(wanted);
    };
    document.addEventListener("click", (event) => {
      const link = event.target.closest('a[href^="#"]');
      if (link) follow(link.hash);
    });
    open(0);
    follow(location.hash);
    addEventListener("hashchange", () => follow(location.hash));
  };

  // A failure that is pressed shows its image in the same place, and itself again when pressed once more.
  const flips = (button) => {
    const image = button.querySelector("img");
    const before = button.closest("figure").querySelector("img");
    const own = { src: image.src, alt: image.alt };
    button.addEventListener("click", () => {
      const flipped = button.getAttribute("aria-pressed") !== "true";
      const shown = flipped ? before : own;
      button.setAttribute("aria-pressed", String(flipped));
      image.src = shown.src;
      image.alt = shown.alt;
    });
  };

  all(".flip").forEach(flips);
  all(".run").forEach(filters);
  all(".matrix").forEach(arrows);
  all(".tabs").forEach(tabs);
})();
